"""What goes over the wire: one file per API, every number and every list bounded."""

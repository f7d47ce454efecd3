"""Request and response models: one file per API, every number and every list bounded."""

"""One file per API: from a request to what the engine is asked, and from its answers to the response."""

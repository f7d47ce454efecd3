"""One file per API: from a request to asks for the engine, and from its deltas to the response."""

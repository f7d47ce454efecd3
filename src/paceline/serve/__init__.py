"""The OpenAI-compatible server: HTTP in front, the engine in a separate process behind a pipe."""

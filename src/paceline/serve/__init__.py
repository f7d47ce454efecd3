"""The OpenAI-compatible server: HTTP in front, the engine in a process of its own behind a pipe."""

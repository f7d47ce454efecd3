"""The engine: the only place that knows about many requests over time."""

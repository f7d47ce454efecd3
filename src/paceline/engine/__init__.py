"""The engine: the only package that handles many requests over time."""

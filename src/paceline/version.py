"""The version, kept apart so that packaging can read it without importing the engine."""

__version__ = "0.1.0"

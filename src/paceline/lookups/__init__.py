"""Lookups: what drafters that run no model find their tokens in."""

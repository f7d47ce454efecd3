"""Lookups: the data in which drafters that run no model find their tokens."""

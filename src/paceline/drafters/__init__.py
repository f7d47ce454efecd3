"""Drafters: one contract (`base`), one file per method."""

"""Compiled search in texts of token ids: an automaton that grows with a text, and sorted suffixes of a text that is done."""

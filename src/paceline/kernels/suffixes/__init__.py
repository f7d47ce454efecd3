"""Compiled search in texts of token ids: an automaton that grows with a text, and the suffix array of a finished text."""

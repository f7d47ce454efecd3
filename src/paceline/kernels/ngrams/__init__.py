"""Ngrams: compiled lookups of a text in itself, by the last few tokens."""

"""Ngrams: compiled look-ups of a text in itself, by the last few tokens."""

"""Ngrams: compiled lookups of a text's last few tokens in the text itself."""

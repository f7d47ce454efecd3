"""Choices: the target's choices along draft trees, for all sequences of a step in one call; and log-probabilities of tokens."""

"""Choices: what the target chooses along trees, for all sequences of a step in one call; and how likely it held a token."""

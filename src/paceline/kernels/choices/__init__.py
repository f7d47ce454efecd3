"""Choices: what the target chooses along a tree, for all sequences of a step in one call."""

"""The exception for errors that the user can fix: shown as one sentence, exit code 2."""


class RecipeError(Exception):
    """Bad input to the recipe; the message is one clear sentence."""

"""The one exception that means "the user can mend this": shown as a sentence, exit code 2."""


class RecipeError(Exception):
    """Bad input to the recipe; the message is one clear sentence."""

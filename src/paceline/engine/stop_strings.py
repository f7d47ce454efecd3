"""Stop strings: where a text that grows holds one, and how much of one it ends with; each character is looked at a few times.

Whoever chooses stop strings may choose such as nearly begin everywhere in an answer, so looking back would cost every step their
length squared.

Source: Knuth, Morris and Pratt, Fast Pattern Matching in Strings (SIAM Journal on Computing 6, 1977), section 2.
"""

from __future__ import annotations


class StopString:
    """begun: characters of it with which the text ends, not all of them."""

    def __init__(self, text: str) -> None:
        self.text, self.begun = text, 0
        self._shorter = [0, 0]
        """By the length of a beginning: that of the longest shorter one with which it ends. Known as far as the text came."""

    def read(self, fresh: str) -> int | None:
        """Go on with the text; how many characters of `fresh` it takes until the string is whole, None where it is not yet.
        Behind one that is whole nothing is to be read."""
        text, shorter, begun, at = self.text, self._shorter, self.begun, 0
        while at < len(fresh):
            # mostly nothing is begun, and then this is the search of Python's own
            if not begun and (at := fresh.find(text[0], at)) < 0:
                break
            while begun and text[begun] != fresh[at]:
                begun = shorter[begun]
            begun += text[begun] == fresh[at]
            at += 1
            if begun == len(text):
                return at
            if begun == len(shorter):
                self._reach(begun)
        self.begun = begun
        return None

    def _reach(self, length: int) -> None:
        """Know the next longer beginning too."""
        text, shorter = self.text, self._shorter
        begun = shorter[-1]
        while begun and text[begun] != text[length - 1]:
            begun = shorter[begun]
        shorter.append(begun + (text[begun] == text[length - 1]))

"""Stop strings: where a growing text contains one, and how much of one it ends with; each character is looked at a few times.

Users may choose stop strings that almost occur everywhere in an answer, so looking back would cost every step the square of
their length.

Source: Knuth, Morris and Pratt, Fast Pattern Matching in Strings (SIAM Journal on Computing 6, 1977), section 2.
"""

from __future__ import annotations


class StopString:
    """begun: length of its longest prefix, shorter than itself, with which the text ends."""

    def __init__(self, text: str) -> None:
        self.text, self.begun = text, 0
        self._shorter = [0, 0]
        """Length of a prefix -> length of the longest shorter prefix with which it ends. Known for lengths that occurred."""

    def read(self, fresh: str) -> int | None:
        """Read more of the text; returns after how many characters of `fresh` the string is complete, None where it is not.
        Must not be called again once it is."""
        text, shorter, begun, at = self.text, self._shorter, self.begun, 0
        while at < len(fresh):
            # usually nothing is begun, and Python's own search does the work
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
        """Extend `_shorter` to prefixes of this length."""
        text, shorter = self.text, self._shorter
        begun = shorter[-1]
        while begun and text[begun] != text[length - 1]:
            begun = shorter[begun]
        shorter.append(begun + (text[begun] == text[length - 1]))

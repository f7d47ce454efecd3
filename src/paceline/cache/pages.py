"""PagePool: which pages are free and how many sequences hold each of the others. Page ids only, no tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from paceline.errors import PacelineError


class OutOfPages(PacelineError):
    """A step needs more pages than are free. Nothing has been changed; the scheduler frees some and tries again.

    slots: of all pages together.
    """

    def __init__(self, needed: int, free: int, slots: int) -> None:
        super().__init__(f"the step needs {needed} more pages of the cache, but only {free} are free")
        self.needed, self.free, self.slots = needed, free, slots


class PagePool:
    """Pages 1 to count, counted by reference. Page 0 belongs to nobody: rows that only pad a captured graph write to it."""

    def __init__(self, count: int, page_size: int) -> None:
        self.count, self.page_size = count, page_size
        self._free = list(range(count, 0, -1))
        self._holders: Counter[int] = Counter()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self._holders)

    def extend(self, more: int) -> None:
        """Add so many pages, all of them free."""
        self._free = list(range(self.count + more, self.count, -1)) + self._free
        self.count += more

    def take(self, count: int) -> list[int]:
        """Take free pages, each with one holder. Raises OutOfPages, and takes none, where fewer are free."""
        if count > len(self._free):
            raise OutOfPages(count, len(self._free), self.count * self.page_size)
        pages = [self._free.pop() for _ in range(count)]
        self._holders.update(pages)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add one holder to each page."""
        self._holders.update(pages)

    def shared(self, page: int) -> bool:
        """Whether a write to this page would be seen by another holder."""
        return self._holders[page] > 1

    def drop(self, pages: Iterable[int]) -> None:
        """Remove one holder from each page; a page without holders is free again."""
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                self._free.append(page)

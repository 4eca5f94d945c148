"""Parts of a task's input, for the search for what kills its process."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of a task's input.

    Attributes:
        first: Place of the first item; ticks come first, then events or tuples.
        last: Place behind the last item; None for all.
        poison: Places of items that are known to kill the process.
    """

    first: int = 0
    last: int | None = None
    poison: frozenset[int] = frozenset()

    def of(self, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Return the items of this part, each with its place."""
        return itertools.islice(enumerate(items), self.first, self.last)

    def after(self, count: int) -> Trial:
        """Return the same part of the items that follow so many others."""
        last = None if self.last is None else max(0, self.last - count)
        poison = frozenset(place - count for place in self.poison if place >= count)
        return Trial(max(0, self.first - count), last, poison)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out but poison."""
        return self.first == 0 and self.last is None


WHOLE: Final = Trial()

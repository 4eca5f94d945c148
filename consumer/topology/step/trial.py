"""Parts of a task's input, for the search for what kills its process."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sequitur.consumer.topology.api.failure import TreeFailure


@dataclass(frozen=True, slots=True)
class Trial:
    """A part of a task's input."""

    first: int = 0  # place of the first item; ticks come first, then events or tuples
    last: int | None = None  # place behind the last item; None for all
    poison: frozenset[int] = frozenset()  # places of items that are known to kill the process
    # places of items that fail, and why: a `finish_batch` raises whenever they are given
    blamed: tuple[tuple[int, TreeFailure], ...] = ()

    def of(self, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Return the items of this part, each with its place."""
        return itertools.islice(enumerate(items), self.first, self.last)

    def after(self, count: int) -> Trial:
        """Return the same part of the items that follow so many others."""
        last = None if self.last is None else max(0, self.last - count)
        poison = frozenset(place - count for place in self.poison if place >= count)
        blamed = tuple((place - count, why) for place, why in self.blamed if place >= count)
        return Trial(max(0, self.first - count), last, poison, blamed)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out but what is known to fail."""
        return self.first == 0 and self.last is None


WHOLE: Final = Trial()

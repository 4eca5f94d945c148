"""By how many partitions rows go to the output topic, which may gain some while a job lives.

Rows up to an event time, the *cut*, go by the old number, later ones by the new. The cut is the
greatest event time that was staged when the growth was found: so what is staged by then stays where
it stands, and of a key all rows up to the cut are in one partition and all later ones in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """By how many partitions rows go, by their event time.

    Attributes:
        counts: Numbers of partitions, each greater than the one before.
        cuts_ms: Of each but the last, the event time up to which it counts, itself included.
    """

    counts: tuple[int, ...]
    cuts_ms: tuple[int, ...] = ()

    @property
    def newest(self) -> int:
        """The number of partitions that the newest rows go by, and those without an event time."""
        return self.counts[-1]

    @property
    def only(self) -> int | None:
        """The number by which all rows go; None where there are several."""
        return None if self.cuts_ms else self.newest

    def grown(self, partitions: int, cut_ms: int) -> Self:
        """Return it for a topic that has more partitions now.

        Args:
            partitions: How many.
            cut_ms: The greatest event time that was staged.
        """
        counts, cuts = self.counts, self.cuts_ms
        if cuts and cuts[-1] == cut_ms:  # no row has gone by the newest
            counts, cuts = counts[:-1], cuts[:-1]
        return type(self)((*counts, partitions), (*cuts, cut_ms))

    def within(self, first_ms: int, last_ms: int) -> tuple[int, ...]:
        """Return by which numbers rows go that have an event time from one up to another."""
        firsts = (first_ms, *(max(first_ms, cut + 1) for cut in self.cuts_ms))
        lasts = (*(min(last_ms, cut) for cut in self.cuts_ms), last_ms)
        return tuple(
            count
            for count, first, last in zip(self.counts, firsts, lasts, strict=True)
            if first <= last
        )

    def reached(self, before_ms: int, frontier_ms: int) -> int:
        """Return how far a step may release: to a cut first, so that each key's order is kept.

        Args:
            before_ms: The frontier before it.
            frontier_ms: How far it could release.
        """
        between = (cut for cut in self.cuts_ms if before_ms < cut < frontier_ms)
        return min(between, default=frontier_ms)

    def to_document(self) -> list[list[int | None]]:
        """Return it as JSON values: numbers, and up to which event time each counts."""
        return [[*one] for one in zip(self.counts, (*self.cuts_ms, None), strict=True)]

    @classmethod
    def from_document(cls, document: Sequence[Sequence[int]]) -> Self:
        """Read `to_document` back."""
        counts, cuts = zip(*document, strict=True)
        return cls(counts, cuts[:-1])

"""How often messages were delivered and not acked, by offset: what a limit of deliveries counts.

Most messages that are out are out for the first time, so spans of equal counts are kept. A span may
cover acked messages, since their counts do not matter any more. A partition has at most
`MOST_SPANS` spans. If there are more, those with the smallest counts are forgotten, and their
messages come once more often.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MOST_SPANS: Final = 50_000
"""The default limit of messages that are out."""


@dataclass(frozen=True, slots=True)
class Redeliveries:
    # in order, without overlaps, each delivered at least once
    spans: tuple[RedeliverySpan, ...] = ()

    @classmethod
    def of(cls, counts: Mapping[int, int], *, out: range, fresh: range = range(0)) -> Self:
        """Join counts. Offsets in no argument are acked."""
        spans = list(_joined(_spans(counts, out), fresh))
        if len(spans) > MOST_SPANS:
            spans.sort(key=itemgetter(2), reverse=True)
            spans = sorted(spans[:MOST_SPANS])
        return cls(tuple(spans))

    def behind(self, offset: int) -> Self:
        """Drop what lies before an offset."""
        if not self.spans or self.spans[0].first >= offset:
            return self
        left = (one._replace(first=max(one.first, offset)) for one in self.spans)
        return type(self)(tuple(one for one in left if one.first < one.stop))

    def followed_by(self, others: Self) -> Self:
        """Return these and later ones together."""
        return type(self)(self.spans + others.spans)

    def among(self, offsets: range) -> dict[int, int]:
        """Return the counts of those offsets that have one."""
        if not self.spans or self.spans[-1].stop <= offsets.start:
            return {}
        begin = max(bisect_right(self.spans, offsets.start, key=itemgetter(0)) - 1, 0)
        end = bisect_left(self.spans, offsets.stop, key=itemgetter(0))
        found: dict[int, int] = {}
        for first, stop, times in self.spans[begin:end]:
            within = range(max(first, offsets.start), min(stop, offsets.stop))
            found |= dict.fromkeys(within, times)
        return found


class RedeliverySpan(NamedTuple):
    """Messages from `first` to before `stop`, and how often each was delivered."""

    first: int
    stop: int
    times: int


NO_REDELIVERIES: Final = Redeliveries()


def _spans(counts: Mapping[int, int], out: range) -> Iterator[RedeliverySpan]:
    """Yield spans in order, also those with count 0: no other span may cover them."""
    at = out.start
    for offset, count in sorted(counts.items()):
        if offset in out:
            if at < offset:
                yield RedeliverySpan(at, offset, 1)
            at = offset + 1
        elif offset >= out.stop > at:
            yield RedeliverySpan(at, out.stop, 1)
            at = out.stop
        yield RedeliverySpan(offset, offset + 1, count)
    if at < out.stop:
        yield RedeliverySpan(at, out.stop, 1)


def _meet(one: RedeliverySpan, two: RedeliverySpan, fresh: range) -> bool:
    """Tell whether no offset between two spans is new."""
    return max(one.stop, fresh.start) < min(two.first, fresh.stop)


def _joined(spans: Iterator[RedeliverySpan], fresh: range) -> Iterator[RedeliverySpan]:
    """Join neighbours with the same count over acked offsets. Drop those with count 0."""
    held: RedeliverySpan | None = None
    for span in spans:
        if held is not None and held.times == span.times and not _meet(held, span, fresh):
            held = held._replace(stop=span.stop)
            continue
        if held is not None and held.times:
            yield held
        held = span
    if held is not None and held.times:
        yield held

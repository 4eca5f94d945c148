"""How many bytes of a partition were read up to which offset: the size of a backlog comes from it.

Kafka does not tell the size of a range of offsets, only that of a whole log, as it is stored:
compressed, as a rule. So a reader of a partition counts what it reads, in pieces: so many bytes up
to this offset. The log's bytes are divided by these counts. Between two counted offsets they are
divided by number. Pieces before the mark-delete position are dropped, and neighbours are joined if
there are many, so the pieces take little room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import msgspec

from sequitur.errors import CursorDamagedError

MOST_PIECES: Final = 64
"""At most so many pieces are kept, so the finest share of a backlog's size is about a 32nd."""


class _Document(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    begin: int
    stops: list[int]
    sizes: list[int]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Document).decode


@dataclass(frozen=True, slots=True)
class CountedSizes:
    """The bytes of keys, values and headers that were read from a partition."""

    begin: int = 0  # first counted offset
    stops: tuple[int, ...] = ()  # the offset behind each piece, ascending
    sizes: tuple[int, ...] = ()  # bytes of each piece

    @property
    def stop(self) -> int:
        return self.stops[-1] if self.stops else self.begin

    def read(self, stop: int, size: int) -> Self:
        """Add what was read up to before `stop`; nothing if `stop` is not ahead."""
        if stop <= self.stop:
            return self
        added = type(self)(self.begin, (*self.stops, stop), (*self.sizes, size))
        return added if len(added.stops) <= MOST_PIECES else added._coarser()  # noqa: SLF001 - its own

    def passed(self, stop: int) -> Self:
        """Add unread messages up to before `stop`, as large as the mean of the read ones."""
        size, span = sum(self.sizes), self.stop - self.begin
        return self.read(stop, (stop - self.stop) * size // span if span else 0)

    def behind(self, offset: int) -> Self:
        """Drop what lies before an offset."""
        if offset <= self.begin:
            return self
        if offset >= self.stop:
            return type(self)(offset)
        first = next(index for index, stop in enumerate(self.stops) if stop > offset)
        left = self._share(first, offset)
        return type(self)(offset, self.stops[first:], (left, *self.sizes[first + 1 :]))

    def size_from(self, offset: int) -> int:
        """Return the bytes from an offset on, up to where counting ended."""
        return sum(self.behind(offset).sizes)

    def weight(self, first: int, stop: int) -> float:
        """Return the bytes from an offset to before another, to be compared with others' only.

        What was not counted weighs as much an offset as what was; 1 where nothing was.
        """
        size, span = sum(self.sizes), self.stop - self.begin
        if not size or stop <= first:
            return float(max(stop - first, 0))
        begin, end = (min(max(one, self.begin), self.stop) for one in (first, stop))
        counted = self.size_from(begin) - self.size_from(end)
        return counted + (stop - first - (end - begin)) * size / span

    def _share(self, index: int, offset: int) -> int:
        """Return the bytes of a piece from `offset` on, rounded."""
        before = self.stops[index - 1] if index else self.begin
        share = (self.stops[index] - offset) / (self.stops[index] - before)
        return round(self.sizes[index] * share)

    def _coarser(self) -> Self:
        last = len(self.stops) - 1
        pairs = [(at, min(at + 2, last)) for at in range(0, last, 2)]
        return type(self)(
            self.begin,
            (*(self.stops[end - 1] for _, end in pairs), self.stops[last]),
            (*(sum(self.sizes[at:end]) for at, end in pairs), self.sizes[last]),
        )

    def encode(self) -> bytes:
        """Return bytes for `encode_cursor`'s `carried`."""
        return _encode(_Document(self.begin, list(self.stops), list(self.sizes)))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read `encode` back; nothing is counted if there are no bytes."""
        if not data:
            return cls()
        try:
            found = _decode(data)
        except msgspec.DecodeError as error:
            raise CursorDamagedError(f"the sizes beside a cursor cannot be read: {error}") from None
        stops = tuple(found.stops)
        ascending = all(one < two for one, two in zip((found.begin, *stops), stops, strict=False))
        are_sizes = len(stops) == len(found.sizes) and min(found.sizes, default=0) >= 0
        if found.begin < 0 or not ascending or not are_sizes:
            raise CursorDamagedError("the sizes beside a cursor make no sense")
        return cls(found.begin, stops, tuple(found.sizes))

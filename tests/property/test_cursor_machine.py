"""A cursor against a plain set of offsets, and as it is written and read."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sequitur.consumer.subscription import acked_ranges
from sequitur.consumer.subscription.acked_ranges import AckedRanges
from sequitur.consumer.subscription.codec import decode_cursor, encode_cursor
from sequitur.consumer.subscription.cursor import LARGEST_OFFSET, Cursor, CursorIdentity
from sequitur.consumer.subscription.stored_pieces import METADATA_LIMIT, pieces_of, read_stored
from sequitur.errors import (
    AckBeyondEndError,
    CursorDamagedError,
    CursorError,
    MarkDeleteBackError,
    StateFormatError,
)
from tests.support.cursors import block_lengths, entries_to_read, state_of
from tests.support.examples import examples

IDENTITY = CursorIdentity("billing", "orders", 3)
_SPAN = 400
_OFFSETS = st.integers(0, _SPAN + 20)
_LENGTHS = st.one_of(st.integers(1, 6), st.integers(1, _SPAN))


class CursorMachine(RuleBasedStateMachine):
    """Acks of all kinds, refused ones among them, on a cursor and on a set."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = mock.patch.multiple(
            acked_ranges, BLOCK_RANGES=6, _SMALL_BLOCK=2, _EACH_ALONE=2
        )
        self.blocks.start()

    def teardown(self) -> None:
        """Give back the blocks' sizes."""
        self.blocks.stop()

    @initialize(start=st.sampled_from([0, 1, 17]))
    def begin(self, start: int) -> None:
        self.cursor = Cursor(IDENTITY, start=start)
        self.acked = set(range(start))
        self.end = start
        self.read = start
        self.consumed = self.absent = self.repeated = 0

    @rule(count=st.integers(1, _SPAN))
    def append(self, count: int) -> None:
        self.end = min(self.end + count, _SPAN)

    @rule(offset=_OFFSETS)
    def ack(self, offset: int) -> None:
        if offset >= self.end:
            self._refused(lambda: self.cursor.ack(offset, end=self.end))
        else:
            self._consume(self.cursor.ack(offset, end=self.end), [offset])

    @rule(first=_OFFSETS, length=_LENGTHS)
    def ack_range(self, first: int, length: int) -> None:
        if first + length > self.end:
            self._refused(lambda: self.cursor.ack_range(first, first + length, end=self.end))
        else:
            added = self.cursor.ack_range(first, first + length, end=self.end)
            self._consume(added, list(range(first, first + length)))

    @rule(offsets=st.lists(_OFFSETS, max_size=60))
    def ack_offsets(self, offsets: list[int]) -> None:
        """Ack messages as a step does, some of them twice."""
        given = np.array(offsets, dtype=np.int64)
        if offsets and max(offsets) >= self.end:
            self._refused(lambda: self.cursor.ack_offsets(given, end=self.end))
        else:
            self._consume(self.cursor.ack_offsets(given, end=self.end), offsets)

    @rule(ranges=st.lists(st.tuples(_OFFSETS, st.integers(1, 40)), max_size=20))
    def ack_ranges(self, ranges: list[tuple[int, int]]) -> None:
        firsts = np.array([first for first, _ in ranges], dtype=np.int64)
        stops = np.array([first + length for first, length in ranges], dtype=np.int64)
        if ranges and int(stops.max()) > self.end:
            self._refused(lambda: self.cursor.ack_ranges(firsts, stops, end=self.end))
        else:
            acks = [offset for first, length in ranges for offset in range(first, first + length)]
            self._consume(self.cursor.ack_ranges(firsts, stops, end=self.end), acks)

    @rule(every=st.integers(2, 5), first=_OFFSETS)
    def ack_every(self, every: int, first: int) -> None:
        offsets = list(range(min(first, self.end), self.end, every))
        added = self.cursor.ack_offsets(np.array(offsets, dtype=np.int64), end=self.end)
        self._consume(added, offsets)

    @rule(offset=_OFFSETS)
    def ack_cumulative(self, offset: int) -> None:
        """Ack all up to a message; a step back is refused."""
        if offset >= self.end:
            self._refused(lambda: self.cursor.ack_cumulative(offset, end=self.end))
        elif offset < self._mark_delete:
            before = state_of(self.cursor)
            with pytest.raises(MarkDeleteBackError):
                self.cursor.ack_cumulative(offset, end=self.end)
            assert state_of(self.cursor) == before
        else:
            again = offset == self._mark_delete
            added = self.cursor.ack_cumulative(offset, end=self.end)
            assert added == self._take(range(offset + 1))
            self.consumed += added
            self.repeated += again

    @rule(first=_OFFSETS, length=st.integers(1, 5))
    def ack_absent(self, first: int, length: int) -> None:
        if first + length > self.end:
            self._refused(lambda: self.cursor.ack_absent(first, first + length, end=self.end))
        else:
            added = self.cursor.ack_absent(first, first + length, end=self.end)
            assert added == self._take(range(first, first + length))
            self.absent += added
            self.repeated += length - added

    @rule(offset=_OFFSETS)
    def seek(self, offset: int) -> None:
        if offset > self.end:
            self._refused(lambda: self.cursor.seek(offset, end=self.end))
        else:
            self.cursor.seek(offset, end=self.end)
            self.read = max(offset, self._mark_delete + 1)

    @rule()
    def rewind(self) -> None:
        """Read on behind the mark-delete position."""
        self.cursor.rewind()
        self.read = self._mark_delete + 1

    @rule()
    def reopen(self) -> None:
        self.cursor = decode_cursor(encode_cursor(self.cursor), IDENTITY).cursor

    @rule(first=_OFFSETS, length=_LENGTHS, count=st.integers(1, 30))
    def ask(self, first: int, length: int, count: int) -> None:
        asked = range(first, first + length)
        found = [o for a, b in self.cursor.unacked_ranges(first, asked.stop) for o in range(a, b)]
        assert found == [offset for offset in asked if offset not in self.acked]
        among = self.cursor.acked_among(np.arange(first, asked.stop)).tolist()
        assert among == [offset in self.acked for offset in asked]
        assert self.cursor.is_acked(first) == (first in self.acked)
        open_ones = [offset for offset in range(self.end) if offset not in self.acked]
        nth = open_ones[count - 1] if count <= len(open_ones) else None
        assert self.cursor.nth_unacked(count, end=self.end) == nth

    @invariant()
    def agrees_with_the_set(self) -> None:
        mark_delete = self._mark_delete
        self.read = max(self.read, mark_delete + 1)
        stats = self.cursor.stats(self.end)
        ranges = _ranges_of({offset for offset in self.acked if offset > mark_delete})
        assert list(self.cursor.acked_ranges()) == ranges
        left = sum(offset not in self.acked for offset in range(self.end))
        to_read = sum(offset not in self.acked for offset in range(self.read, self.end))
        assert (stats.mark_delete, stats.read_position) == (mark_delete, self.read)
        assert (stats.backlog, entries_to_read(self.cursor, self.end)) == (left, to_read)
        assert stats.entries_since_first_not_acked == self.read - mark_delete
        assert stats.acked_ranges == len(ranges)
        counts = (stats.consumed, stats.absent, stats.repeated)
        assert counts == (self.consumed, self.absent, self.repeated)

    @invariant()
    def blocks_are_neither_empty_nor_too_long(self) -> None:
        lengths = block_lengths(self.cursor._ranges)
        assert all(1 <= length <= 6 for length in lengths)
        assert all(max(pair) > 1 for pair in pairwise(lengths))

    @property
    def _mark_delete(self) -> int:
        return next(offset for offset in range(_SPAN + 1) if offset not in self.acked) - 1

    def _consume(self, added: int, acks: list[int]) -> None:
        assert added == self._take(acks)
        self.consumed += added
        self.repeated += len(acks) - added

    def _take(self, offsets: list[int] | range) -> int:
        before = len(self.acked)
        self.acked.update(offsets)
        return len(self.acked) - before

    def _refused(self, ack: object) -> None:
        assert callable(ack)
        before = state_of(self.cursor)
        with pytest.raises(AckBeyondEndError):
            ack()
        assert state_of(self.cursor) == before


CursorMachine.TestCase.settings = settings(max_examples=examples(3), stateful_step_count=50)
TestCursor = CursorMachine.TestCase


@given(
    offsets=st.lists(st.integers(0, 5000), min_size=200, max_size=3000),
    many=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(0.5))
def test_blocks_of_their_real_size(offsets: list[int], seed: int, *, many: bool) -> None:
    """Thousands of ranges, added and then filled in another order, are what a set has."""
    random = np.random.default_rng(seed)
    ranges = AckedRanges()
    model: set[int] = set()
    spread = random.permutation(np.arange(0, 6000, 2))
    rest = random.permutation(6000)
    for part in (spread, np.array(offsets), rest[: len(offsets)]):
        if many:
            added = ranges.add_many(part, part + 1)
        else:
            added = sum(ranges.add(offset, offset + 1) for offset in part.tolist())
        before = len(model)
        model.update(part.tolist())
        assert added == len(model) - before
        assert list(ranges) == _ranges_of(model)
        assert ranges.offsets == len(model)


def _ranges_of(offsets: set[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
_IDENTITIES = st.builds(CursorIdentity, _NAMES, _NAMES, st.integers(0, (1 << 31) - 1))
_GENERATIONS = st.integers(0, (1 << 64) - 1)


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    """A cursor with up to some hundred ranges, near together or far apart."""
    reach = draw(st.sampled_from([300, 70_000, 1 << 33, LARGEST_OFFSET]))
    cursor = Cursor(draw(_IDENTITIES), start=draw(st.integers(0, reach - 1)))
    edges = draw(st.lists(st.integers(0, reach), max_size=300, unique=True).map(sorted))
    for first, stop in zip(edges[0::2], edges[1::2], strict=False):
        cursor.ack_range(first, stop, end=reach)
    cursor.seek(draw(st.integers(0, reach)), end=reach)
    absent = draw(st.integers(0, reach - 1))
    cursor.ack_absent(absent, absent + 1, end=reach)
    return cursor


@given(cursor=cursors(), generation=_GENERATIONS, carried=st.binary(max_size=200))
def test_bytes_are_read_as_they_were_written(
    cursor: Cursor, generation: int, carried: bytes
) -> None:
    written = encode_cursor(cursor, generation=generation, carried=carried)
    stored = decode_cursor(written, cursor.identity)
    assert state_of(stored.cursor) == state_of(cursor)
    assert (stored.generation, stored.carried) == (generation, carried)


@given(
    cursor=cursors(),
    generation=_GENERATIONS,
    limit=st.sampled_from([250, 600, METADATA_LIMIT]),
    chunk_bytes=st.integers(20, 2000),
    data=st.data(),
)
def test_pieces_are_read_as_they_were_written(
    cursor: Cursor, generation: int, limit: int, chunk_bytes: int, data: st.DataObject
) -> None:
    """In any order of the chunks; the metadata keeps to its limit."""
    pieces = pieces_of(cursor, generation=generation, limit=limit, chunk_bytes=chunk_bytes)
    assert len(pieces.metadata) <= limit
    values = data.draw(st.permutations([chunk.value for chunk in pieces.chunks]))
    stored = read_stored(pieces.metadata, values, cursor.identity, offset=pieces.offset)
    assert state_of(stored.cursor) == state_of(cursor)
    assert stored.generation == generation


@given(cursor=cursors(), data=st.data())
@settings(max_examples=examples(5))
def test_changed_bytes_are_never_read(cursor: Cursor, data: st.DataObject) -> None:
    """One byte or some, cut anywhere, or with a part of another cursor."""
    written = encode_cursor(cursor)
    at = data.draw(st.integers(0, len(written) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "leave out", "overwrite", "join"]))
    if how == "flip":
        change = data.draw(st.integers(1, 255))
        wrong = written[:at] + bytes([written[at] ^ change]) + written[at + 1 :]
    elif how == "cut":
        wrong = written[:at]
    elif how == "leave out":
        wrong = written[:at] + written[data.draw(st.integers(at + 1, len(written))) :]
    elif how == "overwrite":
        other = data.draw(st.binary(min_size=1, max_size=4))
        wrong = written[:at] + other + written[at + len(other) :]
    else:
        wrong = written[:at] + encode_cursor(data.draw(cursors()))[at:]
        assume(_keeps_the_header(wrong, written))
    assume(wrong != written)
    with pytest.raises(CursorDamagedError):
        decode_cursor(wrong, cursor.identity)


def _keeps_the_header(wrong: bytes, written: bytes) -> bool:
    """Say whether a join is not the other cursor from its first byte on."""
    return wrong != written and wrong[:25] == written[:25]


@given(cursor=cursors(), data=st.data())
@settings(max_examples=examples(5))
def test_changed_pieces_are_never_read(cursor: Cursor, data: st.DataObject) -> None:
    """A character of the metadata, a byte of a chunk, a chunk left out or doubled."""
    pieces = pieces_of(cursor, generation=3, limit=data.draw(st.sampled_from([250, 4096])))
    text, values = pieces.metadata, [chunk.value for chunk in pieces.chunks]
    kinds = ["metadata", "chunk", "left out", "doubled"] if values else ["metadata"]
    how = data.draw(st.sampled_from(kinds))
    chosen = data.draw(st.integers(0, max(len(values) - 1, 0)))
    if how == "metadata":
        at = data.draw(st.integers(0, len(text) - 1))
        other = data.draw(st.one_of(st.sampled_from("0123456789abcdefAZ+/= "), st.characters()))
        assume(other != text[at])
        text = text[:at] + other + text[at + 1 :]
    elif how == "chunk":
        value = values[chosen]
        at = data.draw(st.integers(0, len(value) - 1))
        change = data.draw(st.integers(1, 255))
        values[chosen] = value[:at] + bytes([value[at] ^ change]) + value[at + 1 :]
    elif how == "left out":
        del values[chosen]
    else:
        values.append(values[chosen])
    with pytest.raises(CursorError) as caught:
        read_stored(text, values, cursor.identity, offset=pieces.offset)
    assert isinstance(caught.value, StateFormatError)


@given(cursor=cursors(), other=_IDENTITIES)
def test_a_cursor_is_read_as_its_own_only(cursor: Cursor, other: CursorIdentity) -> None:
    assume(other != cursor.identity)
    with pytest.raises(CursorError, match="and not that of"):
        decode_cursor(encode_cursor(cursor), other)

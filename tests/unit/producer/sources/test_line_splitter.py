"""Lines come out of chunks with the places where they stood."""

from __future__ import annotations

from sequitur.producer.sources._lines import LineSplitter


def test_a_line_waits_for_its_newline() -> None:
    splitter = LineSplitter(100)
    assert splitter.feed(b"ab").lines == []
    assert splitter.pending_length == 2
    batch = splitter.feed(b"c\nd")
    assert batch.lines == [b"abc"]
    assert (batch.first_line, batch.first_offset, batch.end_offset) == (1, 0, 4)
    assert (splitter.line, splitter.offset, splitter.pending_length) == (2, 4, 1)


def test_the_end_gives_the_last_line() -> None:
    """A last line without a newline is given out at the end, once."""
    splitter = LineSplitter(100, offset=7, line=3)
    splitter.feed(b"xy")
    batch = splitter.finish()
    assert (batch.lines, batch.first_line, batch.end_offset) == ([b"xy"], 3, 9)
    assert splitter.finish().lines == []


def test_each_line_knows_its_offset() -> None:
    """Offsets count newlines, and all bytes of a line that was cut."""
    batch = LineSplitter(3, offset=10).feed(b"a\nbbbbb\nc\n")
    assert batch.lines == [b"a", b"bbb", b"c"]
    assert batch.overlong == {1: 5}
    assert [batch.offset_of(index) for index in range(3)] == [10, 12, 18]
    assert batch.end_offset == 20


def test_an_endless_line_takes_no_more_than_the_limit() -> None:
    """Bytes beyond the limit are counted and not kept."""
    splitter = LineSplitter(4)
    for _ in range(1000):
        splitter.feed(b"0123456789")
    assert splitter.pending_length == 10_000
    batch = splitter.feed(b"\nnext\n")
    assert batch.lines == [b"0123", b"next"]
    assert batch.overlong == {0: 10_000}
    assert batch.offset_of(1) == 10_001


def test_a_line_as_long_as_the_limit_is_whole() -> None:
    assert LineSplitter(4).feed(b"abcd\n").overlong == {}

"""How bytes are cut into chunks changes nothing about the lines."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sequitur.producer.sources._lines import LineSplitter


@given(
    data=st.text(alphabet="ab\n", max_size=60).map(str.encode),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    limit=st.integers(1, 8),
)
def test_chunks_do_not_matter(data: bytes, cuts: list[int], limit: int) -> None:
    """Lines, numbers, offsets and lengths are those of the whole, however it came."""
    splitter = LineSplitter(limit)
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    found: list[tuple[int, int, int, bytes]] = []
    for begin, end in [*pairwise(edges), (-1, -1)]:
        batch = splitter.finish() if begin < 0 else splitter.feed(data[begin:end])
        for index, line in enumerate(batch.lines):
            length = batch.overlong.get(index, len(line))
            found.append((batch.first_line + index, batch.offset_of(index), length, line))
    expected = []
    offset = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines if lines[-1] else lines[:-1], start=1):
        expected.append((number, offset, len(line), line[:limit]))
        offset += len(line) + 1
    assert found == expected
    assert splitter.offset == len(data)

"""Standard input: each line is journaled before much more is read, and none vanishes at a stop."""

from __future__ import annotations

import asyncio
import gzip
import os
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import SourceError, StoppingError
from sequitur.producer.sources._lines import EventParser
from sequitur.producer.sources.stdin import StdinSource
from tests.support.fake_intake import FakeIntake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends to read and to write; the one to write may be closed by the test."""
    reading, writing = os.pipe()
    yield reading, writing
    for end in (reading, writing):
        try:
            os.close(end)
        except OSError:
            continue


def _source(descriptor: int, window_bytes: int = 1 << 20) -> StdinSource:
    return StdinSource(EventParser(None, 100), descriptor=descriptor, window_bytes=window_bytes)


async def test_a_pipe_is_read_to_its_end(pipe: tuple[int, int]) -> None:
    """Lines cut anywhere come whole; the last one needs no newline."""
    intake = FakeIntake()
    run = asyncio.create_task(_source(pipe[0]).run(intake, None))
    os.write(pipe[1], b"1\n2")
    await intake.until(accepted=1)
    assert intake.values == [b"1"]
    os.write(pipe[1], b"3\n4")
    os.close(pipe[1])
    await run
    assert intake.values == [b"1", b"23", b"4"]
    assert intake.journal.durable == len(intake.journal.rounds)


async def test_a_redirected_file_is_read_to_its_end(tmp_path: Path) -> None:
    """The loop cannot wait for it, and need not."""
    path = tmp_path / "lines"
    path.write_bytes(b"1\n" * 100_000)
    intake = FakeIntake()
    with path.open("rb") as file:
        await _source(file.fileno()).run(intake, None)
    assert intake.values == [b"1"] * 100_000


async def test_nothing_to_read_is_the_end(tmp_path: Path) -> None:
    del tmp_path
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        await _source(null).run(intake := FakeIntake(), None)
    finally:
        os.close(null)
    assert intake.values == []


async def test_a_closed_descriptor_is_an_error() -> None:
    """A daemon started without standard input says so."""
    reading, writing = os.pipe()
    os.close(writing)
    os.close(reading)
    with pytest.raises(SourceError, match="standard input cannot be read"):
        await _source(reading).run(FakeIntake(), None)


async def test_no_more_is_read_than_the_window_holds(pipe: tuple[int, int]) -> None:
    intake = FakeIntake()
    intake.sync_allowed.clear()
    run = asyncio.create_task(_source(pipe[0], window_bytes=3).run(intake, None))
    for number in range(1, 4):
        os.write(pipe[1], b"%d\n" % (10 * number))
        await intake.until(accepted=min(number, 2))
    for _ in range(50):
        await asyncio.sleep(0)
    assert intake.values == [b"10", b"20"]
    intake.sync_allowed.set()
    os.close(pipe[1])
    await run
    assert intake.values == [b"10", b"20", b"30"]


async def test_it_ends_when_it_is_told_to_and_nothing_comes(pipe: tuple[int, int]) -> None:
    """A silent pipe does not hold up the daemon; half a line goes to the dead letters."""
    intake = FakeIntake()
    run = asyncio.create_task(_source(pipe[0]).run(intake, None))
    os.write(pipe[1], b"1\n2")
    await intake.until(accepted=1)
    intake.stopping.set()
    await run
    assert intake.values == [b"1"]
    assert intake.refused == [
        (b"2", "stdin line 2 byte 2", "the daemon stopped inside the line"),
    ]


async def test_lines_without_room_at_the_stop_are_not_lost(pipe: tuple[int, int]) -> None:
    """They cannot be read again, so they go to the dead letters."""
    intake = FakeIntake()
    intake.room.clear()
    run = asyncio.create_task(_source(pipe[0]).run(intake, None))
    os.write(pipe[1], b"1\nnul\n\n2\n")
    await intake.until(refused=1)
    intake.stopping.set()
    with pytest.raises(StoppingError):
        await run
    assert intake.values == []
    assert [raw for raw, _, _ in intake.refused] == [b"nul", b"1", b"2"]


@pytest.mark.promise("in-hole-of-nulls")
async def test_holes_are_passed_over(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"\0" * 5_000 + b"1\n\0\0" + b"2\n\0")
    os.close(pipe[1])
    source = _source(pipe[0])
    await source.run(intake := FakeIntake(), None)
    assert (intake.values, intake.refused) == ([b"1", b"2"], [])
    assert source.statistics().hole_bytes == 5_003


_PARTS = {
    "at once": [gzip.compress(b"1\n")],
    "a byte first": [b"\x1f", gzip.compress(b"1\n")[1:]],
    "behind a hole": [bytes(100), bytes(65_000), gzip.compress(b"1\n")],
}


@pytest.mark.promise("in-file-without-lines")
@pytest.mark.parametrize("parts", _PARTS.values(), ids=_PARTS)
async def test_compressed_input_is_refused(pipe: tuple[int, int], parts: list[bytes]) -> None:
    intake = FakeIntake()
    run = asyncio.create_task(_source(pipe[0]).run(intake, None))
    for part in parts:
        os.write(pipe[1], part)
        for _ in range(20):  # it is read in several turns of the loop
            await asyncio.sleep(0)
    with pytest.raises(SourceError, match=r"has no lines: it is compressed .* unpack it"):
        await run
    assert (intake.values, intake.refused) == ([], [])


async def test_bad_lines_are_refused_by_number(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"1\n{\n2\n")
    os.close(pipe[1])
    await _source(pipe[0]).run(intake := FakeIntake(), None)
    assert intake.values == [b"1", b"2"]
    assert [where for _, where, _ in intake.refused] == ["stdin line 2 byte 2"]

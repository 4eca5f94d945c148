"""Whatever a log file goes through, and however it is cut: each line once and in order."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.producer.sources._lines import EventParser, LineSplitter
from sequitur.producer.sources.file import FileSource
from tests.support.examples import examples
from tests.support.fake_intake import CrashedError, FakeIntake, FakeJournal, scripted_pause

if TYPE_CHECKING:
    from collections.abc import Callable


Action = Literal["write", "write part", "rename", "copy", "clock back", "link on", "nothing"]
_ACTIONS: st.SearchStrategy[Action] = st.sampled_from(get_args(Action))


@dataclass(frozen=True)
class _Life:
    """One life of the daemon.

    Attributes:
        before: What happens to the file before it starts.
        during: What happens each time it has read all.
        crash_at: The step it dies at; None for an orderly stop.
        kept_share: How much of what was not durable the power cut leaves.
    """

    before: list[list[Action]]
    during: list[list[Action]]
    crash_at: int | None
    kept_share: float


_GROUPS = st.lists(st.lists(_ACTIONS, min_size=1, max_size=4), max_size=4)
_LIVES = st.lists(
    st.builds(
        _Life,
        before=_GROUPS,
        during=_GROUPS,
        crash_at=st.one_of(st.none(), st.integers(2, 25)),
        kept_share=st.floats(0, 1),
    ),
    min_size=1,
    max_size=4,
)


class _Writer:
    """Writes numbered lines behind a link, and rotates as real ones do.

    As a container's log: `pod/0.log`, with its generations beside it; `1.log` after a new start.
    One that keeps its offset has no `O_APPEND`, so a cut leaves a hole.
    """

    def __init__(self, folder: Path, *, keeps_offset: bool) -> None:
        self._keeps_offset = keeps_offset
        self._offset = 0
        self.link = folder / "app.log"
        self._starts = 0
        self.files = 0
        self._path = folder / "pod" / "0.log"
        self._path.parent.mkdir()
        self.link.symlink_to(self._path)
        self._written = 0
        self._clock_ns = time.time_ns()
        self._create()
        self._owed = b""

    def expected(self) -> list[bytes]:
        return [b"%d" % number for number in range(self._written)]

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case "write":
                    self._write(3)
                case "write part":
                    self._write(1)
                    line = b"%d\n" % self._written
                    self._written += 1
                    self._append(line[:1])
                    self._owed = line[1:]
                case "rename":
                    self.end_line()
                    self._path.rename(self._make_room())
                    self._create()
                case "copy":
                    self.end_line()
                    copy = self._make_room()
                    shutil.copyfile(self._path, copy)
                    self._tick(copy)
                    os.truncate(self._path, 0)
                    self._tick(self._path)
                case "clock back":
                    self._clock_ns -= 3_600_000_000_000
                case "link on":
                    self.end_line()
                    self._starts += 1
                    self._path = self._path.with_name(f"{self._starts}.log")
                    self._create()
                    new = self.link.with_name("new")
                    new.symlink_to(self._path)
                    new.rename(self.link)
                case "nothing":
                    pass

    def end_line(self) -> None:
        if self._owed:
            self._append(self._owed)
        self._owed = b""

    def _write(self, count: int) -> None:
        self.end_line()
        for _ in range(count):
            self._append(b"%d\n" % self._written)
            self._written += 1

    def _append(self, data: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(*((self._offset, os.SEEK_SET) if self._keeps_offset else (0, os.SEEK_END)))
            file.write(data)
        self._offset += len(data)
        self._tick(self._path)

    def _create(self) -> None:
        self.files += 1
        self._offset = 0
        self._path.touch()
        self._tick(self._path)

    def _tick(self, path: Path) -> None:
        """A file system's clock is coarser than this test is fast; rotations are not."""
        self._clock_ns += 1_000_000
        os.utime(path, ns=(self._clock_ns, self._clock_ns))

    def _make_room(self) -> Path:
        numbers = [
            int(path.name.rpartition(".")[2])
            for path in self._path.parent.glob(f"{self._path.name}.*")
        ]
        for number in sorted(numbers, reverse=True):
            self._older(number).rename(self._older(number + 1))
        return self._older(1)

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


async def _live(writer: _Writer, journal: FakeJournal, life: _Life, *, quiet: int = 3) -> None:
    intake = FakeIntake(journal, life.crash_at)
    during: list[Callable[[], object]] = [
        lambda actions=actions: writer.act(actions)  # type: ignore[misc] # bound now, not later
        for actions in life.during
    ]
    source = FileSource(
        writer.link,
        EventParser(None, 100),
        poll_interval_s=1,
        rotate_wait_s=1,
        on_lost_file="fail",
        pause=scripted_pause(*during, quiet=quiet),
    )
    try:
        await source.run(intake, journal.position)
    except CrashedError:
        journal.lose(life.kept_share)
    assert intake.refused == []


async def _all_lives(folder: Path, lives: list[_Life], *, keeps_offset: bool) -> None:
    writer = _Writer(folder, keeps_offset=keeps_offset)
    journal = FakeJournal()
    for life in lives:
        if journal.position is not None:  # before its first start nothing was promised
            for actions in life.before:
                writer.act(actions)
        await _live(writer, journal, life)
        assert journal.values == writer.expected()[: len(journal.values)]
    writer.end_line()
    # Each file that is left was silent for a while first.
    await _live(writer, journal, _Life([], [], None, 1.0), quiet=3 + 3 * writer.files)
    assert journal.values == writer.expected()


@pytest.mark.promise("in-file-followed-rotated")
@settings(max_examples=examples(0.6))
@given(lives=_LIVES, keeps_offset=st.booleans())
def test_each_line_is_accepted_once_and_in_order(lives: list[_Life], keeps_offset: bool) -> None:
    """Through growth, half lines, both kinds of rotation, crashes and restarts, in any order."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_all_lives(Path(folder), lives, keeps_offset=keeps_offset))


@given(
    data=st.text(alphabet="ab\n\0", max_size=60).map(str.encode),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    limit=st.integers(1, 8),
)
def test_chunks_do_not_matter(data: bytes, cuts: list[int], limit: int) -> None:
    """Lines, numbers, offsets and lengths are those of the whole, however it came."""
    splitter = LineSplitter(limit)
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    found: list[tuple[int, int, int, bytes]] = []
    for begin, end in [*pairwise(edges), (-1, -1)]:
        if begin >= 0 and not data[begin:end].strip(b"\0"):
            splitter.feed_nulls(end - begin)
            continue
        batch = splitter.finish() if begin < 0 else splitter.feed(data[begin:end])
        for index, line in enumerate(batch.lines):
            length = batch.overlong.get(index, len(line))
            found.append((batch.first_line + index, batch.offset_of(index), length, line))
    expected = []
    offset = 0
    lines = data.split(b"\n")
    rest = lines[-1].lstrip(b"\0")
    for number, written in enumerate(lines if rest else lines[:-1], start=1):
        line = written.lstrip(b"\0")
        kept = line if len(line) <= limit else re.sub(b"\0+", b"\0", line)[:limit]
        expected.append((number, offset + len(written) - len(line), len(line), kept))
        offset += len(written) + 1
    assert found == expected
    assert splitter.offset == len(data)

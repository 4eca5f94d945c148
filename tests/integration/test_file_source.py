"""A followed file: each line once and in order, through rotation, cuts and restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from sequitur.producer.sources import PositionError, SourceError, StoppingError
from sequitur.producer.sources._lines import EventParser
from sequitur.producer.sources.file import FileSource
from tests.support.fake_intake import CrashedError, FakeIntake, FakeJournal
from tests.support.log_file import LogFile, follow, numbers, open_files, read

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> LogFile:
    return LogFile(tmp_path / "app.log")


async def test_it_follows_a_growing_file(log: LogFile) -> None:
    """What is appended is read, from a file that was not there at first, too."""
    journal = FakeJournal()
    await follow(log, journal, lambda: log.write(1, 3), lambda: log.write(4, 4))
    assert journal.values == numbers(1, 4)


async def test_a_part_of_a_line_waits_for_the_rest(log: LogFile) -> None:
    journal = FakeJournal()
    seen: list[list[bytes]] = []
    await follow(
        log,
        journal,
        lambda: log.append(b"1\n2"),
        lambda: seen.append(list(journal.values)),
        lambda: log.append(b"3\n"),
    )
    assert seen == [[b"1"]]
    assert journal.values == [b"1", b"23"]


async def test_a_restart_goes_on_where_the_journal_ends(log: LogFile) -> None:
    """Nothing is read twice, nothing is left out."""
    journal = FakeJournal()
    log.write(1, 5)
    await follow(log, journal)
    log.write(6, 9)
    await follow(log, journal)
    assert journal.values == numbers(1, 9)


async def test_a_part_of_a_line_read_before_a_restart_is_read_again(log: LogFile) -> None:
    journal = FakeJournal()
    log.append(b"1\n2")
    await follow(log, journal)
    log.append(b"3\n")
    await follow(log, journal)
    assert journal.values == [b"1", b"23"]


async def test_a_bad_line_is_refused_where_it_stands_and_the_rest_goes_on(log: LogFile) -> None:
    """Line numbers and offsets count on over restarts."""
    journal = FakeJournal()
    log.append(b"1\n\n")
    await read(log, journal)
    log.append(b"nul\n2\n\xff\n" + b"x" * 200 + b"\n3\n")
    intake, _ = await read(log, journal)
    assert journal.values == numbers(1, 3)
    inode = log.path.stat().st_ino
    assert [(where, reason.split(":")[0]) for _, where, reason in intake.refused] == [
        (f"{log.path} line 3 byte 3 (inode {inode})", "no JSON"),
        (f"{log.path} line 5 byte 9 (inode {inode})", "no UTF-8"),
        (f"{log.path} line 6 byte 11 (inode {inode})", "too long"),
    ]


async def test_lines_without_events_move_the_position(log: LogFile) -> None:
    """Else bad lines would be refused again at each start."""
    journal = FakeJournal()
    log.append(b"nul\n\n")
    first, _ = await read(log, journal)
    second, _ = await read(log, journal)
    assert (len(first.refused), len(second.refused)) == (1, 0)


async def test_a_crash_between_event_and_position_cannot_be(log: LogFile) -> None:
    """Whichever step is the last, a restart goes on without a gap or a repeat."""
    for crash_at in range(1, 12):
        journal = FakeJournal()
        log.path.write_bytes(b"")
        log.write(1, 4)
        try:
            await follow(log, journal, lambda: log.write(5, 8), crash_at=crash_at)
        except CrashedError:
            journal.lose(0)
            log.path.write_bytes(b"")
            log.write(1, 8)
        await follow(log, journal)
        assert journal.values == numbers(1, 8)


async def test_it_stops_while_there_is_no_room(log: LogFile) -> None:
    """The events are not accepted, and the position stands before them."""
    journal = FakeJournal()
    intake = FakeIntake(journal)
    intake.room.clear()
    intake.stopping.set()
    log.write(1, 2)
    source = FileSource(log.path, EventParser(None, 100))
    await source.run(intake, None)
    intake.stopping.clear()
    intake.on_accept = intake.stopping.set
    with pytest.raises(StoppingError):
        await source.run(intake, journal.position)
    assert journal.values == []
    await read(log, journal)
    assert journal.values == numbers(1, 2)


async def test_without_follow_a_missing_file_is_an_error(log: LogFile) -> None:
    with pytest.raises(SourceError, match="is not there"):
        await read(log, FakeJournal())


async def test_without_follow_the_last_line_needs_no_newline(log: LogFile) -> None:
    journal = FakeJournal()
    log.append(b"1\n2")
    await read(log, journal)
    assert journal.values == [b"1", b"2"]


async def test_a_position_of_something_else_is_refused(log: LogFile) -> None:
    """Rather than beginning anew, which would send everything twice."""
    log.write(1, 1)
    source = FileSource(log.path, EventParser(None, 100))
    for position in (b"\x00", b"{}", msgspec.json.encode({"sent": 1, "plan": "x"})):
        with pytest.raises(PositionError, match="no position in a file"):
            await source.run(FakeIntake(), position)


async def test_no_file_stays_open(log: LogFile) -> None:
    before = open_files()
    log.write(1, 1)
    await follow(log, FakeJournal(), *[log.rotate, log.copy_and_cut, lambda: None] * 3)
    assert open_files() <= before + 1  # a thread's, made once

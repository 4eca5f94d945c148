"""A followed file is read whole through rotation, cuts and removal: each line once, in order."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest
from structlog.testing import capture_logs

from sequitur.errors import LostFileError, PositionError, SourceError, StoppingError
from sequitur.producer.sources._lines import EventParser, TextParser
from sequitur.producer.sources.file import FileSource
from tests.support.fake_intake import (
    CrashedError,
    FakeIntake,
    FakeJournal,
    Round,
    scripted_pause,
)
from tests.support.log_file import LogFile, follow, numbers, open_files, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.producer.sources._rotation import RotatedNumbers


@pytest.fixture(params=[False, True], ids=["appends", "keeps its offset"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> LogFile:
    return LogFile(tmp_path / "app.log", keeps_offset=request.param)


@pytest.fixture
def far(tmp_path: Path) -> LogFile:
    """A log whose writer is beyond 600 kB, and keeps its offset: each cut leaves a large hole."""
    log = LogFile(tmp_path / "app.log", keeps_offset=True)
    log.append(b'"%098d"\n' % 0 * 6_000)
    return log


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


_JSON, _TEXT = EventParser(None, 100), TextParser(100)


@pytest.mark.promise("in-line-two-halves")
@pytest.mark.parametrize(
    ("parser", "half", "rest", "line"),
    [
        (_JSON, b'{"n": 2', b"34}\n", b'{"n": 234}'),
        (_JSON, b"12", b"34\n", b"1234"),
        (_JSON, b'"text', b'"\n', b'"text"'),
        (_JSON, b'"text"', b"\n", b'"text"'),
        (_JSON, b"[1]", b"\r\n", b"[1]"),
        (_JSON, b"nul", b"l\n", b"null"),
        (_JSON, b'{"a":"\xc3', b'\xa4"}\n', b'{"a":"\xc3\xa4"}'),
        (_JSON, b"12\r", b"\n", b"12"),
        (_JSON, b"\0\0\0" + b"12", b"3\n", b"123"),
        (_JSON, b'{"a":1}' + b" " * 100, b"\n", None),
        (_TEXT, b"sec", b"ond\n", b"second"),
        (_TEXT, b'{"a":1}', b" is JSON\n", b'{"a":1} is JSON'),
        (_TEXT, b"\xc3", b"\xa4\n", b"\xc3\xa4"),
        (_TEXT, b"text\r", b"\n", b"text"),
    ],
)
async def test_without_follow_half_a_line_is_left_for_the_next_run(
    log: LogFile, parser: EventParser, half: bytes, rest: bytes, line: bytes | None
) -> None:
    """Also over several runs. It is told where it stands, and how long it is."""
    journal = FakeJournal()
    log.append(b"1\n" + half)
    length = len(half.lstrip(b"\0"))
    for _ in range(2):
        with capture_logs() as logs:
            intake, _ = await read(log, journal, parser=parser)
        assert (journal.values, intake.refused) == ([b"1"], [])
        told = [entry for entry in logs if entry["log_level"] == "warning"]
        assert [(one["line"], one["byte"], one["bytes"]) for one in told] == [(2, 2, length)]
    log.append(rest + b"3\n")
    intake, _ = await read(log, journal, parser=parser)
    assert journal.values == [b"1", *([] if line is None else [line]), b"3"]
    assert len(intake.refused) == (line is None)


@pytest.mark.promise("in-line-two-halves")
@pytest.mark.parametrize("rest", [b"\n", b" \r\n", b"\r\n", b"\0\n"])
@pytest.mark.parametrize("line", [b'{"a":1}', b' {"a":1} ', b'{"a":1}\r'])
async def test_an_object_without_a_newline_is_whole(log: LogFile, line: bytes, rest: bytes) -> None:
    """Its newline may come later."""
    journal = FakeJournal()
    log.append(line)
    await read(log, journal)
    log.append(rest + b"2\n")
    intake, _ = await read(log, journal)
    assert journal.values == [line.removesuffix(b"\r"), b"2"]
    assert intake.refused == []


@pytest.mark.promise("in-line-two-halves")
@pytest.mark.parametrize(
    ("parser", "line", "value"),
    [
        (_JSON, b"12", b"12"),
        (_JSON, b'{"n": 2', None),
        (_JSON, b'"\xc3', None),
        (_TEXT, b"sec", b"sec"),
        (_TEXT, b"\xc3", b"\xc3"),
    ],
)
async def test_the_last_line_is_taken_when_asked_to(
    log: LogFile, parser: EventParser, line: bytes, value: bytes | None
) -> None:
    """As an event or a dead letter. What is appended to it is a dead letter that says so."""
    journal = FakeJournal()
    log.append(b"1\n" + line)
    intake, _ = await read(log, journal, parser=parser, take_last_line=True)
    assert journal.values[1:] == ([] if value is None else [value])
    assert [raw for raw, _, _ in intake.refused] == ([line] if value is None else [])
    for part in (b"3", b"4"):
        log.append(part)
        intake, _ = await read(log, journal, parser=parser)
        assert intake.refused == []
    log.append(b"\n5\n")
    intake, _ = await read(log, journal, parser=parser)
    place = f"{log.path} line 2 byte {2 + len(line)} (inode {log.path.stat().st_ino})"
    reason = "appended to a line that was taken before it had a newline"
    assert intake.refused == [(b"34", place, reason)]
    assert journal.values[-1] == b"5"
    assert len(journal.values) == 2 + (value is not None)


@pytest.mark.promise("in-line-two-halves")
async def test_without_follow_half_a_line_of_a_rotated_file_may_get_its_rest(log: LogFile) -> None:
    """Its writer has the old file open for a moment longer."""
    journal = FakeJournal()
    log.append(b"1\n2")
    await read(log, journal)
    old = log.path.open("ab", buffering=0)
    log.rotate()
    log.write(3, 3)
    with old:
        await read(
            log,
            journal,
            poll_interval_s=1,
            rotate_wait_s=2,
            pause=scripted_pause(lambda: old.write(b"0\n"), quiet=4),
        )
    assert journal.values == [b"1", b"20", b"3"]


async def test_a_position_of_something_else_is_refused(log: LogFile) -> None:
    """Rather than beginning anew, which would send everything twice."""
    log.write(1, 1)
    source = FileSource(log.path, EventParser(None, 100))
    for position in (b"\x00", b"{}", msgspec.json.encode({"sent": 1, "plan": "x"})):
        with pytest.raises(PositionError, match="not a position in a file"):
            await source.run(FakeIntake(), position)


async def test_no_file_stays_open(log: LogFile) -> None:
    before = open_files()
    log.write(1, 1)
    await follow(log, FakeJournal(), *[log.rotate, log.copy_and_cut, lambda: None] * 3)
    assert open_files() <= before + 1  # a thread's, made once


async def test_rename_and_create_while_running(log: LogFile) -> None:
    """The old file is read to its end, then the new one."""
    journal = FakeJournal()

    def rotate_behind_unread_lines() -> None:
        log.write(4, 5)
        log.rotate()
        log.write(6, 7)

    log.write(1, 3)
    _, source = await follow(log, journal, rotate_behind_unread_lines)
    assert journal.values == numbers(1, 7)
    assert source.statistics().files_finished == 1
    assert source.statistics().files_lost == 0


async def test_lines_written_to_the_old_file_after_its_rotation(log: LogFile) -> None:
    """A writer has the old file open for a moment longer: its lines come first."""
    journal = FakeJournal()
    log.write(1, 2)
    old = log.path.open("ab")

    def rotate() -> None:
        log.rotate()
        log.write(4, 5)

    def write_late() -> None:
        old.write(b"3\n")
        old.close()

    _, source = await follow(log, journal, rotate, write_late)
    assert journal.values == numbers(1, 5)
    assert source.statistics().left_behind_bytes == 0


async def test_lines_written_to_a_file_that_was_left_are_told(log: LogFile) -> None:
    journal = FakeJournal()
    log.write(1, 2)
    with log.path.open("ab") as old, capture_logs() as logs:

        def write_late() -> None:
            old.write(b"3\n")
            old.flush()

        rest = [lambda: None] * 3
        _, source = await follow(log, journal, log.rotate, *rest, write_late)
    assert source.statistics().left_behind_bytes == 2
    assert [entry["lost_bytes"] for entry in logs if entry["log_level"] == "error"] == [2]


async def test_copy_and_truncate_while_running(log: LogFile) -> None:
    journal = FakeJournal()

    def cut_behind_unread_lines() -> None:
        log.write(4, 5)
        log.copy_and_cut()
        log.write(6, 7)

    log.write(1, 3)
    _, source = await follow(log, journal, cut_behind_unread_lines)
    assert journal.values == numbers(1, 7)
    assert source.statistics().files_lost == 0


async def test_a_cut_file_that_has_outgrown_our_offset_is_seen(log: LogFile) -> None:
    """Its size alone would not tell."""
    journal = FakeJournal()

    def cut_and_outgrow() -> None:
        log.copy_and_cut()
        log.write(4, 90)

    log.write(1, 3)
    _, source = await follow(log, journal, cut_and_outgrow)
    assert journal.values == numbers(1, 90)
    assert source.statistics().files_lost == 0


async def test_a_copy_shorter_than_what_was_read_is_no_loss(log: LogFile) -> None:
    """Lines that came between the copy and the cut were read from the file itself."""
    journal = FakeJournal()
    log.write(1, 300)

    def copy() -> None:
        shutil.copyfile(log.path, log.path.with_name("app.log.1"))
        log.write(301, 302)

    def cut() -> None:
        os.truncate(log.path, 0)
        log.write(303, 304)

    _, source = await follow(log, journal, copy, cut)
    assert journal.values == numbers(1, 304)
    assert source.statistics().files_lost == 0


def _is_dense(descriptor: int) -> bool:
    """Whether the file system calls a hole data."""
    try:
        return os.lseek(descriptor, 1 << 20, os.SEEK_DATA) == 1 << 20
    except OSError:
        return False


@pytest.mark.promise("in-hole-of-nulls")
async def test_the_line_behind_a_hole_is_read(far: LogFile) -> None:
    """Also behind one larger than the longest line. What was passed over is counted and told."""
    journal = FakeJournal()

    def cut() -> None:
        far.copy_and_cut()
        far.write(1, 3)

    with capture_logs() as logs:
        intake, source = await follow(far, journal, cut)
    assert journal.values[6_000:] == numbers(1, 3)
    assert intake.refused == []
    assert source.statistics().hole_bytes == 6_000 * 101
    told = [entry for entry in logs if "NULs before lines" in entry["event"]]
    assert [(entry["null_bytes"], entry["first_line"]) for entry in told] == [(606_000, 1)]


@pytest.mark.promise("in-hole-of-nulls")
@pytest.mark.parametrize("hole", [1, 2_000, 600_000])
async def test_a_hole_at_the_end_is_passed_over_when_its_line_comes(
    log: LogFile, hole: int
) -> None:
    """Before that also after a restart, and when the hole grows."""
    journal = FakeJournal()
    log.write(1, 1)
    await follow(
        log,
        journal,
        lambda: log.append(b"\0" * hole),
        lambda: log.append(b"\0" * hole),
        lambda: log.append(b"2"),
        lambda: log.append(b"0\n"),
        lambda: log.append(b"\0" * hole),
    )
    _, source = await follow(log, journal, lambda: log.append(b"\0" * hole + b"21\n"))
    assert journal.values == [b"1", b"20", b"21"]
    assert source.statistics().hole_bytes == 2 * hole
    assert source.statistics().files_lost == 0


@pytest.mark.promise("in-hole-of-nulls")
@pytest.mark.parametrize("before", [b"", b"1\n", b"1\n{"])
async def test_a_hole_may_be_larger_than_the_disk(log: LogFile, before: bytes) -> None:
    """A writer that keeps its offset through a year of cuts has written terabytes."""
    journal, at = FakeJournal(), 1 << 40
    log.append(before)
    await follow(log, journal)

    def write(*places: int) -> None:
        with log.path.open("r+b") as file:
            for place in places:
                file.truncate(max(place, log.path.stat().st_size))
                file.seek(place)
                file.write(b"2\n")

    with log.path.open("r+b") as file:
        file.truncate(at)
        if os.lseek(file.fileno(), at >> 1, os.SEEK_HOLE) != at >> 1 or _is_dense(file.fileno()):
            pytest.skip("this file system has no holes")
    intake, source = await follow(
        log, journal, lambda: write(at), lambda: None, lambda: write(3 * at, 3 * at + 2)
    )
    begun = before.endswith(b"{")
    assert journal.values == [*before.split()[:1], *[b"2"] * (2 if begun else 3)]
    assert [raw for raw, _, _ in intake.refused] == ([b"{\0" + b"2"] if begun else [])
    assert source.statistics().files_lost == 0
    await follow(log, journal)
    assert len(journal.values) == len(before.split()[:1]) + (2 if begun else 3)


@pytest.mark.promise("in-hole-of-nulls")
@pytest.mark.parametrize("before", [b"", b"1\n"])
async def test_a_hole_at_the_end_may_be_filled_from_its_beginning(
    log: LogFile, before: bytes
) -> None:
    """Where a file is given its blocks before its lines."""
    journal = FakeJournal()
    log.append(before + b"\0" * 100_000)

    def fill(data: bytes, place: int) -> None:
        with log.path.open("r+b") as file:
            file.seek(len(before) + place)
            file.write(data)
        status = log.path.stat()
        os.utime(log.path, ns=(status.st_atime_ns, status.st_mtime_ns + 4_000_000))

    _, source = await follow(
        log, journal, lambda: fill(b"2\n3", 0), lambda: fill(b"0\n4\n", 3), lambda: None
    )
    assert journal.values == [*before.split(), b"2", b"30", b"4"]
    assert source.statistics().files_lost == 0


@pytest.mark.promise("in-hole-of-nulls")
async def test_generations_that_begin_with_holes_are_told_apart(far: LogFile) -> None:
    """Although a new one has the inode of one that was removed."""
    journal = FakeJournal()
    await follow(far, journal, far.copy_and_cut)
    far.write(1, 3)
    await follow(far, journal, far.copy_and_cut)
    oldest = far.path.with_name("app.log.1")
    oldest.write_bytes(b"\0" * 700_000 + b"4\n5\n")
    oldest.rename(far.path.with_name("app.log.0"))
    far.write(6, 6)
    _, source = await follow(far, journal)
    assert journal.values[6_000:] == numbers(1, 6)
    assert source.statistics().files_lost == 0


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("rotation", [LogFile.rotate, LogFile.copy_and_cut])
async def test_rotated_while_down(
    log: LogFile, rotation: Callable[[LogFile], None], times: int
) -> None:
    """The file that was being read is found again, and all that came between is read."""
    journal = FakeJournal()
    log.write(1, 5)
    await read(log, journal)
    for time in range(times):
        log.write(6 + 3 * time, 7 + 3 * time)
        rotation(log)
        log.write(8 + 3 * time, 8 + 3 * time)
    _, source = await read(log, journal)
    assert journal.values == numbers(1, 5 + 3 * times)
    assert source.statistics().files_lost == 0


async def test_a_file_renamed_to_any_name_is_found_by_its_inode(log: LogFile) -> None:
    """Not every rotation numbers its files."""
    journal = FakeJournal()
    log.write(1, 2)
    await read(log, journal)
    log.write(3, 4)
    log.path.rename(log.path.with_name("yesterday"))
    log.write(5, 6)
    await read(log, journal)
    assert journal.values == numbers(1, 6)


async def test_a_number_of_an_inode_given_away_is_seen(log: LogFile) -> None:
    """A new file with the old one's inode is not taken for it."""
    journal = FakeJournal()
    log.write(1, 50)
    await read(log, journal)
    kept = log.path.with_name("app.log.1")
    shutil.copyfile(log.path, kept)
    os.truncate(log.path, 0)  # the inode is the same, the content is not
    log.write(51, 150)
    await read(log, journal)
    assert journal.values == numbers(1, 150)


async def test_a_copy_beside_the_file_is_not_read(log: LogFile) -> None:
    """A backup under a rotated file's name holds nothing new."""
    journal = FakeJournal()
    log.write(1, 5)

    def back_up_and_rotate() -> None:
        shutil.copyfile(log.path, log.path.with_name("app.log.20261120"))
        log.rotate()
        log.write(6, 7)

    with capture_logs() as logs:
        await follow(log, journal, back_up_and_rotate)
    assert journal.values == numbers(1, 7)
    assert "passed over as a copy" in {entry["event"] for entry in logs}


async def test_a_removed_file_is_told_and_the_next_one_read(log: LogFile) -> None:
    """Lines that nobody can read any more are an error with a name, not silence."""
    journal = FakeJournal()
    log.write(1, 5)
    await read(log, journal)
    log.rotate()
    log.write(6, 7)
    log.rotate()
    log.path.with_name("app.log.2").unlink()
    log.write(8, 9)
    with capture_logs() as logs:
        _, source = await read(log, journal)
    assert journal.values == numbers(1, 9)
    assert source.statistics().files_lost == 1
    (error,) = (entry for entry in logs if entry["log_level"] == "error")
    assert "app.log: the file that was read to byte 10" in error["problem"]


async def test_a_lost_file_ends_the_source_when_asked_to(log: LogFile) -> None:
    """With `on_lost_file = "fail"` nothing is read before somebody has looked."""
    journal = FakeJournal()
    log.write(1, 5)
    await read(log, journal)
    os.truncate(log.path, 0)
    with pytest.raises(LostFileError, match="gone or was cut"):
        await read(log, journal, on_lost_file="fail")
    assert journal.values == numbers(1, 5)


async def test_the_file_removed_and_made_anew_while_running(log: LogFile) -> None:
    """What was open is read to its end, also without a name."""
    journal = FakeJournal()

    def replace() -> None:
        log.write(3, 4)
        log.path.unlink()
        log.write(5, 6)

    log.write(1, 2)
    _, source = await follow(log, journal, replace)
    assert journal.values == numbers(1, 6)
    assert source.statistics().files_lost == 0


async def test_a_rotation_before_the_first_event_is_not_missed(log: LogFile) -> None:
    """Where we begin is journaled before anything is read."""
    journal = FakeJournal()
    log.path.touch()
    await follow(log, journal)
    assert journal.position is not None
    log.write(1, 2)
    log.rotate()
    log.write(3, 4)
    await follow(log, journal)
    assert journal.values == numbers(1, 4)


async def test_a_torn_last_line_of_a_rotated_file_is_an_event_of_its_own(log: LogFile) -> None:
    journal = FakeJournal()
    log.append(b'1\n{"torn":')

    def rotate() -> None:
        log.rotate()
        log.write(2, 2)

    intake, _ = await follow(log, journal, rotate)
    assert journal.values == [b"1", b"2"]
    ((raw, where, reason),) = intake.refused
    assert raw == b'{"torn":'
    assert "app.log line 2 byte 2 (inode" in where
    assert reason.startswith("no JSON")


async def test_a_late_writer_and_an_empty_new_file(log: LogFile) -> None:
    """The old file, younger now than the new one's beginning, is not read a second time."""
    journal = FakeJournal()
    log.write(1, 2)
    old = log.path.open("ab")
    now_s = log.path.stat().st_mtime

    def write_late() -> None:
        old.write(b"3\n")
        old.close()
        os.utime(log.path.with_name("app.log.1"), (now_s + 10, now_s + 10))

    def write_new() -> None:
        log.write(4, 5)
        os.utime(log.path, (now_s + 20, now_s + 20))

    rest = [lambda: None] * 4
    _, source = await follow(log, journal, log.rotate, write_late, *rest, write_new)
    assert source.statistics().files_finished == 1
    assert journal.values == numbers(1, 5)


async def test_an_empty_file_written_copied_and_cut_between_two_looks(log: LogFile) -> None:
    """Nothing in the file tells; that it was written since, and a younger copy, do."""
    journal = FakeJournal()
    log.path.touch()
    os.utime(log.path, (1, 1))

    def write_and_cut() -> None:
        log.write(1, 3)
        log.copy_and_cut()
        log.write(4, 5)

    await follow(log, journal, write_and_cut)
    assert journal.values == numbers(1, 5)


async def test_a_finished_file_may_be_removed(log: LogFile) -> None:
    """Also before the new one has its first event: the journal no longer points to the old."""
    journal = FakeJournal()
    log.write(1, 3)
    await follow(log, journal, log.rotate)
    log.path.with_name("app.log.1").unlink()
    log.write(4, 5)
    _, source = await read(log, journal, on_lost_file="fail")
    assert journal.values == numbers(1, 5)
    assert source.statistics().files_lost == 0


@pytest.mark.parametrize("changed", [0, 10_000])
async def test_a_position_needs_its_first_and_its_last_bytes(log: LogFile, changed: int) -> None:
    """A file that differs in either is another file."""
    journal = FakeJournal()
    line = b'"' + b"x" * 100 + b'"\n'
    content = bytearray(line * 100)
    log.append(bytes(content))
    await read(log, journal)
    content[min(changed, len(content) - 10)] = ord("7")
    log.path.write_bytes(content)  # as long as before, in the same inode
    with pytest.raises(LostFileError):
        await read(log, journal, on_lost_file="fail")


@pytest.mark.promise("in-file-followed-rotated")
@pytest.mark.parametrize("rotated_numbers", ["higher-is-older", "higher-is-newer"])
async def test_a_clock_set_back_between_two_rotations(
    log: LogFile, rotated_numbers: RotatedNumbers
) -> None:
    """Numbers are the order, whatever the times of the last writes say."""
    journal = FakeJournal()
    log.write(1, 3)
    await read(log, journal)
    names = ["app.log.1", "app.log.2", "app.log.3"]
    if rotated_numbers == "higher-is-older":
        names.reverse()
    now_s = log.path.stat().st_mtime
    for place, name in enumerate(names):
        log.write(4 + 2 * place, 5 + 2 * place)
        os.utime(log.path, (now_s - 3_600 * place,) * 2)
        log.path.rename(log.path.with_name(name))
        log.path.touch()
    log.write(10, 11)
    os.utime(log.path, (now_s - 10_000,) * 2)
    _, source = await read(log, journal, rotated_numbers=rotated_numbers)
    assert journal.values == numbers(1, 11)
    assert source.statistics().files_passed_over == 0


@pytest.mark.promise("in-file-followed-rotated")
async def test_numbers_that_count_the_other_way_are_told(log: LogFile) -> None:
    """What was there before is not read; what cannot be placed is neither guessed nor silent."""
    journal = FakeJournal()
    log.path.with_name("app.log.1").write_bytes(b"0\n")
    log.write(1, 2)
    await read(log, journal)
    log.path.rename(log.path.with_name("app.log.2"))
    log.write(3, 4)
    with capture_logs() as logs:
        await read(log, journal)
    assert journal.values == numbers(1, 4)
    (told,) = (entry for entry in logs if entry["log_level"] == "error")
    assert told["older_files"] == ["app.log.1"]
    assert told["rotated_numbers"] == "higher-is-older"
    for number in (3, 4):
        log.path.rename(log.path.with_name(f"app.log.{number}"))
        log.write(2 * number - 1, 2 * number)
    with pytest.raises(LostFileError, match=r"app\.log\.4: its number says .*higher-is-older"):
        await read(log, journal, on_lost_file="fail")
    with capture_logs() as logs:
        _, source = await read(log, FakeJournal(list(journal.rounds)))
    assert source.statistics().files_passed_over == 1
    assert "rotated file passed over" in {entry["event"] for entry in logs}
    await read(log, journal, on_lost_file="fail", rotated_numbers="higher-is-newer")
    assert journal.values == numbers(1, 8)


@pytest.mark.promise("in-half-line-taken-back")
@pytest.mark.parametrize("is_down", [False, True])
async def test_a_writer_may_take_half_a_line_back(tmp_path: Path, is_down: bool) -> None:
    """As many do after a crash: they cut the file behind its last whole line, and write on."""
    log = LogFile(tmp_path / "app.log")
    log.append(b"1\n2\n34")
    journal = FakeJournal()

    def take_back() -> None:
        os.truncate(log.path, 4)
        log.append(b"5\n")

    if is_down:
        await read(log, journal)
        take_back()
        _, source = await read(log, journal)
    else:
        _, source = await follow(log, journal, lambda: None, take_back)
    assert journal.values == [b"1", b"2", b"5"]
    assert source.statistics().files_lost == 0


@pytest.mark.promise("in-file-without-lines")
@pytest.mark.parametrize("has_newlines", [False, True])
@pytest.mark.parametrize("is_rotated", [False, True])
async def test_a_compressed_file_that_comes_later_is_refused(
    tmp_path: Path, is_rotated: bool, has_newlines: bool
) -> None:
    """In the place of a missing file, or of one that was rotated: as it is at the start."""
    path, journal = tmp_path / "app.log", FakeJournal()
    content = gzip.compress(b"2\n\n" * 100, mtime=0x0A0A if has_newlines else 0)
    assert (b"\n" in content) is has_newlines
    if is_rotated:
        path.write_bytes(b"1\n")

    def put() -> None:
        if is_rotated:
            path.rename(tmp_path / "app.log.1")
        path.write_bytes(content)

    intake = FakeIntake(journal)
    pause = scripted_pause(put, quiet=30)
    source = FileSource(path, TextParser(1_000), pause=pause)
    with pytest.raises(SourceError, match="has no lines: it is compressed"):
        await source.run(intake, None)
    assert (journal.values, intake.refused) == ([b"1"] if is_rotated else [], [])


@pytest.mark.promise("in-file-without-lines")
async def test_a_generation_that_is_compressed_under_a_plain_name_is_passed_over(
    log: LogFile,
) -> None:
    """Told once and counted; what comes after it is read."""
    log.write(1, 2)
    journal = FakeJournal()

    def rotate() -> None:
        log.rotate()
        log.rotate()
        log.path.with_name("app.log.1").write_bytes(gzip.compress(b"0\n\n" * 100))
        log.write(3, 4)

    with capture_logs() as logs:
        _, source = await follow(log, journal, rotate, *[lambda: None] * 30)
        log.write(5, 5)
        await follow(log, journal)
    assert journal.values == numbers(1, 5)
    assert source.statistics().files_passed_over == 1
    told = [each["problem"] for each in logs if each["event"] == "rotated file passed over"]
    assert [each.partition(": ")[2] for each in told] == [
        "it is compressed or an archive: unpack it"
    ]


@pytest.mark.promise("in-file-followed-rotated")
async def test_a_generation_compressed_before_it_was_read_is_told(log: LogFile) -> None:
    journal = FakeJournal()
    log.write(1, 3)
    _compress(log.path, log.path.with_name("app.log.9.gz"))
    log.path.touch()
    log.write(4, 5)
    await follow(log, journal, log.rotate)
    _compress(log.path.with_name("app.log.1"), log.path.with_name("app.log.2.gz"))
    log.write(6, 7)
    log.rotate()
    log.write(8, 9)
    log.rotate()
    _compress(log.path.with_name("app.log.1"), log.path.with_name("app.log.1.gz"))
    log.write(10, 11)
    with capture_logs() as logs:
        _, source = await read(log, journal)
    assert journal.values == [*numbers(4, 7), *numbers(10, 11)]
    assert source.statistics().files_passed_over == 1
    (told,) = (entry for entry in logs if entry["log_level"] == "error")
    assert told["problem"].endswith("app.log.1.gz: it was compressed before it was read")
    with capture_logs() as logs:
        log.rotate()
        await read(log, journal)
    assert not [entry for entry in logs if entry["log_level"] == "error"]


async def test_a_file_that_came_and_was_rotated_before_it_was_seen(log: LogFile) -> None:
    """All that is written after the first look is read."""
    journal = FakeJournal()
    log.path.with_name("app.log.1").write_bytes(b"0\n")

    def write_and_rotate() -> None:
        log.write(1, 2)
        log.rotate()
        log.write(3, 4)

    await follow(log, journal, write_and_rotate)
    assert journal.values == numbers(1, 4)


async def test_a_position_without_a_list_of_what_is_older_goes_on(log: LogFile) -> None:
    """As journals of before have it: then the times of the last writes decide, once."""
    journal = FakeJournal()
    log.write(1, 2)
    log.rotate()
    os.utime(log.path.with_name("app.log.1"), (1, 1))
    log.write(3, 4)
    await read(log, journal)
    assert journal.position is not None
    former = msgspec.json.decode(journal.position)
    del former["log"], former["older"]
    former["previous_inode"] = 0
    journal.rounds.append(Round([], msgspec.json.encode(former)))
    log.write(5, 5)
    for number in range(6, 8):
        log.rotate()
        log.write(number, number)
    await read(log, journal)
    assert journal.values == numbers(3, 7)


@pytest.mark.promise("in-file-followed-rotated")
class TestBehindALink:
    """As the log of a container in Kubernetes: a link to `0.log` in another folder."""

    @pytest.fixture
    def link(self, tmp_path: Path) -> LogFile:
        (tmp_path / "containers").mkdir()
        (tmp_path / "pod").mkdir()
        path = tmp_path / "containers" / "app.log"
        path.symlink_to(tmp_path / "pod" / "0.log")
        return LogFile(path)

    @pytest.fixture
    def target(self, tmp_path: Path) -> LogFile:
        return LogFile(tmp_path / "pod" / "0.log")

    @staticmethod
    def rotate_as_kubelet(target: LogFile, stamp: int) -> None:
        target.path.rename(target.path.with_name(f"{target.path.name}.20261124-{stamp:06d}"))
        target.path.touch()

    @staticmethod
    def point_to(link: LogFile, target: LogFile) -> None:
        """At once, as whoever sets links does."""
        new = link.path.with_name("new")
        new.symlink_to(target.path)
        new.rename(link.path)

    async def test_rotated_twice_while_down(self, link: LogFile, target: LogFile) -> None:
        journal = FakeJournal()
        target.write(1, 3)
        await read(link, journal)
        for number in (4, 6):
            target.write(number, number)
            self.rotate_as_kubelet(target, number)
            target.write(number + 1, number + 1)
        _, source = await read(link, journal)
        assert journal.values == numbers(1, 7)
        assert source.statistics().files_lost == 0

    async def test_cut_while_down(self, link: LogFile, target: LogFile) -> None:
        journal = FakeJournal()
        target.write(1, 3)
        await read(link, journal)
        target.write(4, 5)
        target.copy_and_cut()
        target.write(6, 7)
        await read(link, journal, on_lost_file="fail")
        assert journal.values == numbers(1, 7)

    async def test_the_old_target_is_read_to_its_end(self, link: LogFile, target: LogFile) -> None:
        """With its generations, and after it those of the new one, and of what came between."""
        journal = FakeJournal()
        target.write(1, 3)
        await read(link, journal)
        self.rotate_as_kubelet(target, 1)
        target.write(4, 5)
        for number in (1, 2):
            target = LogFile(target.path.with_name(f"{number}.log"))
            target.write(2 + 4 * number, 3 + 4 * number)
            self.rotate_as_kubelet(target, number)
            target.write(4 + 4 * number, 5 + 4 * number)
        self.point_to(link, target)
        await read(link, journal, on_lost_file="fail")
        assert journal.values == numbers(1, 13)

    async def test_the_link_is_set_while_the_old_target_is_written(
        self, link: LogFile, target: LogFile
    ) -> None:
        """Its writer may still have it open: it has to be silent first, as after a rotation."""
        journal = FakeJournal()
        target.write(1, 3)
        new = LogFile(target.path.with_name("other.log"))

        def set_link() -> None:
            target.write(4, 5)
            new.write(7, 8)
            self.point_to(link, new)

        _, source = await follow(link, journal, set_link, lambda: target.write(6, 6))
        assert journal.values == numbers(1, 8)
        assert source.statistics().left_behind_bytes == 0

    async def test_the_link_is_away_for_a_moment(self, link: LogFile, target: LogFile) -> None:
        journal = FakeJournal()
        target.write(1, 3)
        new = LogFile(target.path.with_name("1.log"))

        def set_link() -> None:
            new.write(6, 7)
            link.path.symlink_to(new.path)

        await follow(link, journal, link.path.unlink, lambda: target.write(4, 5), set_link)
        assert journal.values == numbers(1, 7)

    async def test_a_target_that_is_gone_is_told(self, link: LogFile, target: LogFile) -> None:
        """As when a pod was removed while the daemon was down."""
        journal = FakeJournal()
        target.write(1, 3)
        await read(link, journal)
        new = LogFile(link.path.with_name("0.log"))
        new.write(4, 5)
        self.point_to(link, new)
        shutil.rmtree(target.path.parent)
        _, source = await read(link, journal)
        assert journal.values == numbers(1, 5)
        assert source.statistics().files_lost == 1

    async def test_a_folder_that_was_moved_is_no_other_log(
        self, link: LogFile, target: LogFile, tmp_path: Path
    ) -> None:
        """A link on the way to the file may be set to where its folder is now."""
        journal = FakeJournal()
        target.write(1, 3)
        await read(link, journal)
        moved = LogFile(tmp_path / "moved" / "0.log")
        target.path.parent.rename(moved.path.parent)
        self.point_to(link, moved)
        moved.write(4, 5)
        moved.rotate()
        moved.write(6, 7)
        await read(link, journal, on_lost_file="fail")
        assert journal.values == numbers(1, 7)


def _compress(path: Path, compressed: Path) -> None:
    with path.open("rb") as lines, gzip.open(compressed, "wb") as file:
        shutil.copyfileobj(lines, file)
    path.unlink()

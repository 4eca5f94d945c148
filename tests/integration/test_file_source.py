"""A followed file: each line once and in order, through rotation, cuts and restarts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from structlog.testing import capture_logs

from producer.sources import LostFileError, PositionError, SourceError, StoppingError
from producer.sources._file import FileSource
from producer.sources._json_lines import EventParser
from tests.fake_intake import CrashedError, FakeIntake, FakeJournal, scripted_pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer.sources._file import OnLostFile


def _numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class _Log:
    """A log file as programs and rotation treat it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, first: int, last: int) -> None:
        """Append whole lines, one a number."""
        self.append(b"".join(number + b"\n" for number in _numbers(first, last)))

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def rotate(self) -> None:
        """Rename and create."""
        self._shift()
        self.path.rename(self._older(1))
        self.path.touch()

    def copy_and_cut(self) -> None:
        """Copy and truncate."""
        self._shift()
        shutil.copyfile(self.path, self._older(1))
        os.truncate(self.path, 0)

    def _shift(self) -> None:
        for number in range(8, 0, -1):
            if self._older(number).exists():
                self._older(number).rename(self._older(number + 1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


@pytest.fixture
def log(tmp_path: Path) -> _Log:
    """A log in a folder of its own."""
    return _Log(tmp_path / "app.log")


async def _follow(
    log: _Log,
    journal: FakeJournal,
    *actions: Callable[[], object],
    crash_at: int | None = None,
    **options: Any,
) -> tuple[FakeIntake, FileSource]:
    """Follow the file; each time it was read to its end do the next action; then stop."""
    intake = FakeIntake(journal, crash_at)
    source = FileSource(
        log.path,
        EventParser(None, 100),
        poll_interval_s=1,
        rotate_wait_s=1,
        pause=scripted_pause(*actions, quiet=6),
        **options,
    )
    await source.run(intake, journal.position)
    return intake, source


async def _read(
    log: _Log, journal: FakeJournal, *, on_lost_file: OnLostFile = "continue"
) -> tuple[FakeIntake, FileSource]:
    """Read to the end, and stop there."""
    intake = FakeIntake(journal)
    source = FileSource(log.path, EventParser(None, 100), follow=False, on_lost_file=on_lost_file)
    await source.run(intake, journal.position)
    return intake, source


async def test_it_follows_a_growing_file(log: _Log) -> None:
    """What is appended is read, from a file that was not there at first, too."""
    journal = FakeJournal()
    await _follow(log, journal, lambda: log.write(1, 3), lambda: log.write(4, 4))
    assert journal.values == _numbers(1, 4)


async def test_a_part_of_a_line_waits_for_the_rest(log: _Log) -> None:
    """A line is an event once its newline is there, and not before."""
    journal = FakeJournal()
    seen: list[list[bytes]] = []
    await _follow(
        log,
        journal,
        lambda: log.append(b"1\n2"),
        lambda: seen.append(list(journal.values)),
        lambda: log.append(b"3\n"),
    )
    assert seen == [[b"1"]]
    assert journal.values == [b"1", b"23"]


async def test_a_restart_goes_on_where_the_journal_ends(log: _Log) -> None:
    """Nothing is read twice, nothing is left out."""
    journal = FakeJournal()
    log.write(1, 5)
    await _follow(log, journal)
    log.write(6, 9)
    await _follow(log, journal)
    assert journal.values == _numbers(1, 9)


async def test_a_part_of_a_line_read_before_a_restart_is_read_again(log: _Log) -> None:
    """The position stands before a line that was not whole."""
    journal = FakeJournal()
    log.append(b"1\n2")
    await _follow(log, journal)
    log.append(b"3\n")
    await _follow(log, journal)
    assert journal.values == [b"1", b"23"]


async def test_rename_and_create_while_running(log: _Log) -> None:
    """The old file is read to its end, then the new one."""
    journal = FakeJournal()

    def rotate_behind_unread_lines() -> None:
        log.write(4, 5)
        log.rotate()
        log.write(6, 7)

    log.write(1, 3)
    _, source = await _follow(log, journal, rotate_behind_unread_lines)
    assert journal.values == _numbers(1, 7)
    assert source.statistics().files_finished == 1
    assert source.statistics().files_lost == 0


async def test_lines_written_to_the_old_file_after_its_rotation(log: _Log) -> None:
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

    _, source = await _follow(log, journal, rotate, write_late)
    assert journal.values == _numbers(1, 5)
    assert source.statistics().left_behind_bytes == 0


async def test_lines_written_to_a_file_that_was_left_are_told(log: _Log) -> None:
    """They are lost, and that is counted and logged."""
    journal = FakeJournal()
    log.write(1, 2)
    with log.path.open("ab") as old, capture_logs() as logs:

        def write_late() -> None:
            old.write(b"3\n")
            old.flush()

        rest = [lambda: None] * 3
        _, source = await _follow(log, journal, log.rotate, *rest, write_late)
    assert source.statistics().left_behind_bytes == 2
    assert [entry["lost_bytes"] for entry in logs if entry["log_level"] == "error"] == [2]


async def test_copy_and_truncate_while_running(log: _Log) -> None:
    """What was not read when the file was cut is read from the copy."""
    journal = FakeJournal()

    def cut_behind_unread_lines() -> None:
        log.write(4, 5)
        log.copy_and_cut()
        log.write(6, 7)

    log.write(1, 3)
    _, source = await _follow(log, journal, cut_behind_unread_lines)
    assert journal.values == _numbers(1, 7)
    assert source.statistics().files_lost == 0


async def test_a_cut_file_that_has_outgrown_our_offset_is_seen(log: _Log) -> None:
    """Its size alone would not tell."""
    journal = FakeJournal()

    def cut_and_outgrow() -> None:
        log.copy_and_cut()
        log.write(4, 90)

    log.write(1, 3)
    _, source = await _follow(log, journal, cut_and_outgrow)
    assert journal.values == _numbers(1, 90)
    assert source.statistics().files_lost == 0


async def test_a_copy_shorter_than_what_was_read_is_no_loss(log: _Log) -> None:
    """Lines that came between the copy and the cut were read from the file itself."""
    journal = FakeJournal()
    log.write(1, 300)

    def copy() -> None:
        shutil.copyfile(log.path, log.path.with_name("app.log.1"))
        log.write(301, 302)

    def cut() -> None:
        os.truncate(log.path, 0)
        log.write(303, 304)

    _, source = await _follow(log, journal, copy, cut)
    assert journal.values == _numbers(1, 304)
    assert source.statistics().files_lost == 0


@pytest.mark.parametrize("rotation", [_Log.rotate, _Log.copy_and_cut])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_rotated_while_down(log: _Log, rotation: Callable[[_Log], None], times: int) -> None:
    """The file that was being read is found again, and all that came between is read."""
    journal = FakeJournal()
    log.write(1, 5)
    await _read(log, journal)
    for time in range(times):
        log.write(6 + 3 * time, 7 + 3 * time)
        rotation(log)
        log.write(8 + 3 * time, 8 + 3 * time)
    _, source = await _read(log, journal)
    assert journal.values == _numbers(1, 5 + 3 * times)
    assert source.statistics().files_lost == 0


async def test_a_file_renamed_to_any_name_is_found_by_its_inode(log: _Log) -> None:
    """Not every rotation numbers its files."""
    journal = FakeJournal()
    log.write(1, 2)
    await _read(log, journal)
    log.write(3, 4)
    log.path.rename(log.path.with_name("yesterday"))
    log.write(5, 6)
    await _read(log, journal)
    assert journal.values == _numbers(1, 6)


async def test_a_number_of_an_inode_given_away_is_seen(log: _Log) -> None:
    """A new file with the old one's inode is not taken for it."""
    journal = FakeJournal()
    log.write(1, 50)
    await _read(log, journal)
    kept = log.path.with_name("app.log.1")
    shutil.copyfile(log.path, kept)
    os.truncate(log.path, 0)  # the inode is the same, the content is not
    log.write(51, 150)
    await _read(log, journal)
    assert journal.values == _numbers(1, 150)


async def test_a_copy_beside_the_file_is_not_read(log: _Log) -> None:
    """A backup under a rotated file's name holds nothing new."""
    journal = FakeJournal()
    log.write(1, 5)

    def back_up_and_rotate() -> None:
        shutil.copyfile(log.path, log.path.with_name("app.log.20261120"))
        log.rotate()
        log.write(6, 7)

    with capture_logs() as logs:
        await _follow(log, journal, back_up_and_rotate)
    assert journal.values == _numbers(1, 7)
    assert "passed over as a copy" in {entry["event"] for entry in logs}


async def test_a_removed_file_is_told_and_the_next_one_read(log: _Log) -> None:
    """Lines that nobody can read any more are an error with a name, not silence."""
    journal = FakeJournal()
    log.write(1, 5)
    await _read(log, journal)
    log.rotate()
    log.write(6, 7)
    log.rotate()
    log.path.with_name("app.log.2").unlink()
    log.write(8, 9)
    with capture_logs() as logs:
        _, source = await _read(log, journal)
    assert journal.values == _numbers(1, 9)
    assert source.statistics().files_lost == 1
    (error,) = (entry for entry in logs if entry["log_level"] == "error")
    assert "app.log: the file that was read to byte 10" in error["problem"]


async def test_a_lost_file_ends_the_source_when_asked_to(log: _Log) -> None:
    """With `on_lost_file = "fail"` nothing is read before somebody has looked."""
    journal = FakeJournal()
    log.write(1, 5)
    await _read(log, journal)
    os.truncate(log.path, 0)
    with pytest.raises(LostFileError, match="gone or was cut"):
        await _read(log, journal, on_lost_file="fail")
    assert journal.values == _numbers(1, 5)


async def test_the_file_removed_and_made_anew_while_running(log: _Log) -> None:
    """What was open is read to its end, also without a name."""
    journal = FakeJournal()

    def replace() -> None:
        log.write(3, 4)
        log.path.unlink()
        log.write(5, 6)

    log.write(1, 2)
    _, source = await _follow(log, journal, replace)
    assert journal.values == _numbers(1, 6)
    assert source.statistics().files_lost == 0


async def test_a_rotation_before_the_first_event_is_not_missed(log: _Log) -> None:
    """Where we begin is journaled before anything is read."""
    journal = FakeJournal()
    log.path.touch()
    await _follow(log, journal)
    assert journal.position is not None
    log.write(1, 2)
    log.rotate()
    log.write(3, 4)
    await _follow(log, journal)
    assert journal.values == _numbers(1, 4)


async def test_a_torn_last_line_of_a_rotated_file_is_an_event_of_its_own(log: _Log) -> None:
    """It is not glued to the new file's first line."""
    journal = FakeJournal()
    log.append(b'1\n{"torn":')

    def rotate() -> None:
        log.rotate()
        log.write(2, 2)

    intake, _ = await _follow(log, journal, rotate)
    assert journal.values == [b"1", b"2"]
    ((raw, where, reason),) = intake.refused
    assert raw == b'{"torn":'
    assert "app.log line 2 byte 2 (inode" in where
    assert reason.startswith("no JSON")


async def test_a_bad_line_is_refused_where_it_stands_and_the_rest_goes_on(log: _Log) -> None:
    """Line numbers and offsets count on over restarts."""
    journal = FakeJournal()
    log.append(b"1\n\n")
    await _read(log, journal)
    log.append(b"nul\n2\n\xff\n" + b"x" * 200 + b"\n3\n")
    intake, _ = await _read(log, journal)
    assert journal.values == _numbers(1, 3)
    inode = log.path.stat().st_ino
    assert [(where, reason.split(":")[0]) for _, where, reason in intake.refused] == [
        (f"{log.path} line 3 byte 3 (inode {inode})", "no JSON"),
        (f"{log.path} line 5 byte 9 (inode {inode})", "no UTF-8"),
        (f"{log.path} line 6 byte 11 (inode {inode})", "too long"),
    ]


async def test_lines_without_events_move_the_position(log: _Log) -> None:
    """Else bad lines would be refused again at each start."""
    journal = FakeJournal()
    log.append(b"nul\n\n")
    first, _ = await _read(log, journal)
    second, _ = await _read(log, journal)
    assert (len(first.refused), len(second.refused)) == (1, 0)


async def test_a_crash_between_event_and_position_cannot_be(log: _Log) -> None:
    """Whichever step is the last, a restart goes on without a gap or a repeat."""
    for crash_at in range(1, 12):
        journal = FakeJournal()
        log.path.write_bytes(b"")
        log.write(1, 4)
        try:
            await _follow(log, journal, lambda: log.write(5, 8), crash_at=crash_at)
        except CrashedError:
            journal.lose(0)
            log.path.write_bytes(b"")
            log.write(1, 8)
        await _follow(log, journal)
        assert journal.values == _numbers(1, 8)


async def test_it_stops_while_there_is_no_room(log: _Log) -> None:
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
    await _read(log, journal)
    assert journal.values == _numbers(1, 2)


async def test_without_follow_a_missing_file_is_an_error(log: _Log) -> None:
    """There is nothing to wait for."""
    with pytest.raises(SourceError, match="is not there"):
        await _read(log, FakeJournal())


async def test_without_follow_the_last_line_needs_no_newline(log: _Log) -> None:
    """The end of the file is the end of the line."""
    journal = FakeJournal()
    log.append(b"1\n2")
    await _read(log, journal)
    assert journal.values == [b"1", b"2"]


async def test_a_position_of_something_else_is_refused(log: _Log) -> None:
    """Rather than beginning anew, which would send everything twice."""
    log.write(1, 1)
    source = FileSource(log.path, EventParser(None, 100))
    for position in (b"\x00", b"{}", msgspec.json.encode({"sent": 1, "plan": "x"})):
        with pytest.raises(PositionError, match="no position in a file"):
            await source.run(FakeIntake(), position)


async def test_no_file_stays_open(log: _Log) -> None:
    """However often it rotates."""
    before = _open_files()
    log.write(1, 1)
    await _follow(log, FakeJournal(), *[log.rotate, log.copy_and_cut, lambda: None] * 3)
    assert _open_files() <= before + 1  # a thread's, made once

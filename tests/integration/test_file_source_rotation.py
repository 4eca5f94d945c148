"""A followed file is read whole through rotation, cuts and removal, each line once."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from sequitur.producer.sources import LostFileError
from tests.support.fake_intake import FakeJournal
from tests.support.log_file import LogFile, follow, numbers, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> LogFile:
    """A log in a folder of its own."""
    return LogFile(tmp_path / "app.log")


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
    """They are lost, and that is counted and logged."""
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
    """What was not read when the file was cut is read from the copy."""
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
    """It is not glued to the new file's first line."""
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

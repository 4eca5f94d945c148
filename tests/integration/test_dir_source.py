"""A folder's files: whole, in the order of their names, each line once, renamed when durable."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sequitur.producer.sources import LostFileError, PositionError, SourceError
from sequitur.producer.sources._line_file import LineFile
from sequitur.producer.sources._lines import EventParser
from sequitur.producer.sources.dir import DirectorySource
from tests.support.fake_intake import CrashedError, FakeIntake, FakeJournal, scripted_pause


async def _read(
    folder: Path, journal: FakeJournal, *, crash_at: int | None = None, **options: Any
) -> tuple[FakeIntake, DirectorySource]:
    intake = FakeIntake(journal, crash_at)
    options.setdefault("follow", False)
    source = DirectorySource(folder, EventParser(None, 100), **options)
    await source.run(intake, journal.position)
    return intake, source


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_files_are_read_in_name_order_and_renamed(tmp_path: Path) -> None:
    """The last line of a file needs no newline; files of writers at work are left alone."""
    for name, content in {
        "b.jsonl": b"3\n4",
        "a.jsonl": b"1\n2\n",
        ".hidden": b"0\n",
        "c.tmp": b"0\n",
        "c.part": b"0\n",
        "old.done": b"0\n",
        "empty": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    journal = FakeJournal()
    _, source = await _read(tmp_path, journal)
    assert journal.values == [b"1", b"2", b"3", b"4"]
    assert _names(tmp_path) == [
        ".hidden", "a.jsonl.done", "b.jsonl.done", "c.part", "c.tmp", "empty.done", "folder",
        "old.done",
    ]  # fmt: skip
    assert source.statistics().files_finished == 3


async def test_it_waits_for_more_files(tmp_path: Path) -> None:
    """A file that was renamed into place is read at the next look."""
    journal = FakeJournal()

    def put() -> None:
        (tmp_path / "a.part").write_bytes(b"1\n")
        (tmp_path / "a.part").rename(tmp_path / "a")

    await _read(tmp_path, journal, follow=True, pause=scripted_pause(put))
    assert journal.values == [b"1"]
    assert _names(tmp_path) == ["a.done"]


async def test_a_file_keeps_its_name_until_its_events_are_durable(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    intake = FakeIntake()
    intake.sync_allowed.clear()
    source = DirectorySource(tmp_path, EventParser(None, 100), follow=False)
    run = asyncio.create_task(source.run(intake, None))
    await intake.until(accepted=1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert _names(tmp_path) == ["a"]
    intake.sync_allowed.set()
    await run
    assert _names(tmp_path) == ["a.done"]


async def test_wherever_it_crashes_each_line_is_there_once(tmp_path: Path) -> None:
    """At each step, with everything lost that was not durable, and with nothing lost."""
    lines = [b"%d" % number for number in range(6)]
    for crash_at in range(1, 16):
        for kept_share in (0.0, 0.5, 1.0):
            folder = tmp_path / f"{crash_at} {kept_share}"
            folder.mkdir()
            for name, first in (("a", 0), ("b", 2), ("c", 4)):
                content = b"".join(line + b"\n" for line in lines[first : first + 2])
                (folder / name).write_bytes(content)
            journal = FakeJournal()
            with pytest.raises(CrashedError):
                await _read(folder, journal, crash_at=crash_at)
            journal.lose(kept_share)
            await _read(folder, journal)
            assert journal.values == lines
            assert _names(folder) == ["a.done", "b.done", "c.done"]


async def test_a_crash_inside_a_file_goes_on_inside_it(tmp_path: Path) -> None:
    """A file larger than one read is not begun anew."""
    lines = [b'"%090d"' % number for number in range(9_000)]
    (tmp_path / "a").write_bytes(b"\n".join(lines))
    journal = FakeJournal()
    with pytest.raises(CrashedError):
        await _read(tmp_path, journal, crash_at=3)
    assert 0 < len(journal.values) < len(lines)
    await _read(tmp_path, journal)
    assert journal.values == lines


async def test_a_name_used_again_is_another_file(tmp_path: Path) -> None:
    """Its events are sent, and the earlier file is not overwritten."""
    journal = FakeJournal()
    for content in (b"1\n", b"2\n", b"1\n"):
        (tmp_path / "a").write_bytes(content)
        await _read(tmp_path, journal)
    assert journal.values == [b"1", b"2", b"1"]
    assert _names(tmp_path) == ["a.2.done", "a.3.done", "a.done"]


async def test_the_same_content_again_is_not_taken_for_done(tmp_path: Path) -> None:
    """Also when the first file was removed and its inode is used again."""
    journal = FakeJournal()
    for time in range(2):
        (tmp_path / "a").write_bytes(b"1\n")
        os.utime(tmp_path / "a", (time, time))
        await _read(tmp_path, journal)
        (tmp_path / "a.done").unlink()
    assert journal.values == [b"1", b"1"]


async def test_a_done_file_may_be_removed(tmp_path: Path) -> None:
    """Whoever tidies up causes no alarm."""
    journal = FakeJournal()
    (tmp_path / "a").write_bytes(b"1\n")
    await _read(tmp_path, journal)
    (tmp_path / "a.done").unlink()
    _, source = await _read(tmp_path, journal, on_lost_file="fail")
    assert source.statistics().files_lost == 0


async def test_a_file_gone_before_it_was_read_is_told(tmp_path: Path) -> None:
    """An error that names it, and with `fail` the end."""
    (tmp_path / "a").write_bytes(b"1\n")
    journal = FakeJournal()
    with pytest.raises(CrashedError):
        await _read(tmp_path, journal, crash_at=2)
    (tmp_path / "a").unlink()
    with pytest.raises(LostFileError, match="was read to byte 2"):
        await _read(tmp_path, journal, on_lost_file="fail")
    with capture_logs() as logs:
        _, source = await _read(tmp_path, journal)
    assert source.statistics().files_lost == 1
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [
        "source file lost"
    ]


async def test_a_file_that_cannot_be_opened_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once, and read when it can be."""
    for name, content in (("a", b"1\n"), ("b", b"2\n"), ("c", b"3\n")):
        (tmp_path / name).write_bytes(content)
    locked = {"a"}

    def open_file(path: Path, limit_bytes: int) -> LineFile:
        if path.name in locked:
            raise PermissionError(13, "Permission denied", str(path))
        return LineFile(path, limit_bytes)

    monkeypatch.setattr("sequitur.producer.sources.dir.LineFile", open_file)
    journal = FakeJournal()
    _, source = await _read(tmp_path, journal, follow=True, pause=scripted_pause(locked.clear))
    assert journal.values == [b"2", b"3", b"1"]
    assert source.statistics().files_unreadable == 1


@pytest.mark.promise("in-entry-folder-read")
@pytest.mark.parametrize("name", ["loop", "b\udcff", "unreadable"])
async def test_an_entry_that_nobody_can_read_holds_up_no_other(tmp_path: Path, name: str) -> None:
    """A link to itself, a name that no position can hold, a file that fails: told once."""
    odd = tmp_path / name
    if name == "loop":
        odd.symlink_to(odd)
    elif name == "unreadable":
        odd.symlink_to("/proc/self/mem")
    else:
        odd.write_bytes(b"1\n")
    (tmp_path / "z").write_bytes(b"2\n")
    journal = FakeJournal()
    gc.collect()  # what other tests left open counts in neither
    descriptors = _open_files()
    with capture_logs() as logs:
        _, source = await _read(tmp_path, journal, follow=True, pause=scripted_pause(quiet=20))
    assert journal.values == [b"2"]
    assert source.statistics().files_unreadable == 1
    told = [entry["path"] for entry in logs if entry["event"] == "file passed over"]
    assert [path.isascii() for path in told] == [True]
    assert _open_files() <= descriptors  # other threads of the process may close some


async def test_bad_lines_are_refused_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\nnul\n2")
    journal = FakeJournal()
    intake, _ = await _read(tmp_path, journal)
    assert journal.values == [b"1", b"2"]
    ((raw, where, _),) = intake.refused
    assert (raw, where.partition(" (")[0]) == (b"nul", f"{tmp_path / 'a'} line 2 byte 2")
    assert _names(tmp_path) == ["a.done"]


async def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """Rather than waiting for ever at a misspelt path."""
    with pytest.raises(SourceError, match="is not there"):
        await _read(tmp_path / "missing", FakeJournal(), follow=True)


async def test_a_position_of_something_else_is_refused(tmp_path: Path) -> None:
    """Rather than beginning anew."""
    source = DirectorySource(tmp_path, EventParser(None, 100))
    with pytest.raises(PositionError):
        await source.run(FakeIntake(), b"{}")

"""A folder's files: whole, in the order of names, each line once, whatever its writer does."""

from __future__ import annotations

import asyncio
import bz2
import contextlib
import gc
import gzip
import lzma
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from sequitur.errors import LostFileError, PositionError, SourceError
from sequitur.producer.sources._line_file import LineFile
from sequitur.producer.sources._lines import EventParser, TextParser
from sequitur.producer.sources.dir import DirectorySource, WatchedFolder
from tests.support.fake_intake import CrashedError, FakeIntake, FakeJournal, scripted_pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
    for crash_at in range(1, 12):
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


async def test_files_that_wait_share_their_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the journal and one of the folder for sixteen small files; a large one has its own."""
    for number in range(40):
        (tmp_path / f"{number:02}").write_bytes(b"%d\n" % number)
    (tmp_path / "large").write_bytes(b"7\n" * (1 << 17))
    synced = _count_syncs(monkeypatch)
    journal = FakeJournal()
    intake, source = await _read(tmp_path, journal)
    assert journal.values == [b"%d" % number for number in range(40)] + [b"7"] * (1 << 17)
    assert source.statistics().files_finished == 41
    of_positions = sum(not each.records for each in journal.rounds)
    assert (of_positions, len(synced)) == (3, 3)  # 16, 16, and 8 with the large one
    assert all(name.endswith(".done") for name in _names(tmp_path))
    assert intake.refused == []


@pytest.mark.promise("in-power-cut-folder")
@pytest.mark.parametrize("undone", ["all", "every second", "none"])
async def test_wherever_the_power_is_cut_each_line_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: _Steps, undone: str
) -> None:
    """Renames that were not synced may be undone, and rounds of the journal that were not."""
    lines = [b"%d" % number for number in range(5)]
    synced = _count_syncs(monkeypatch)
    cuts = 0
    for step in range(1, 200):
        folder = tmp_path / str(step)
        folder.mkdir()
        for line in lines:
            (folder / f"f{line.decode()}").write_bytes(line + b"\n")
        synced[:] = [_inodes(folder)]
        journal = FakeJournal()
        steps.count, steps.at = 0, {step: _crash}
        try:
            await _run(folder, journal, steps, most_together=2)
        except CrashedError:
            cuts += 1
        else:
            break
        finally:
            steps.at = {}
        _undo_renames(folder, synced[-1], {"all": 1, "every second": 2, "none": 0}[undone])
        journal.lose(0.0)
        await _run(folder, journal, steps)
        assert journal.values == lines
        assert _names(folder) == [f"f{line.decode()}.done" for line in lines]
    assert 40 < cuts < 199


@pytest.mark.promise("in-power-cut-folder")
@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_power_cut_while_names_are_synced_doubles_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: _Steps, is_durable: bool
) -> None:
    for number in range(4):
        (tmp_path / f"f{number}").write_bytes(b"%d\n" % number)
    before = _inodes(tmp_path)
    journal = FakeJournal()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: _crash())
        with pytest.raises(CrashedError):
            await _run(tmp_path, journal, steps, most_together=3)
    _undo_renames(tmp_path, before, 0 if is_durable else 1)
    journal.lose(0.0)
    await _run(tmp_path, journal, steps)
    assert journal.values == [b"0", b"1", b"2", b"3"]
    assert _names(tmp_path) == ["f0.done", "f1.done", "f2.done", "f3.done"]


def _crash() -> None:
    raise CrashedError


def _inodes(folder: Path) -> dict[int, str]:
    """Each file's name, by its inode."""
    return {path.stat().st_ino: path.name for path in folder.iterdir()}


def _count_syncs(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, str]]:
    """Note the names that a folder had at each of its syncs."""
    synced: list[dict[int, str]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(_inodes(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", noted)
    return synced


def _undo_renames(folder: Path, synced: dict[int, str], every: int) -> None:
    """Give files the names that they had at the last sync: all of those, or every second one."""
    renamed = [path for path in sorted(folder.iterdir()) if synced[path.stat().st_ino] != path.name]
    for path in renamed[::every] if every else ():
        path.rename(path.with_name(synced[path.stat().st_ino]))


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


@pytest.mark.promise("in-line-two-halves")
async def test_what_is_appended_to_a_last_line_is_no_event(tmp_path: Path, steps: _Steps) -> None:
    """Each line is an event once, whenever a writer who keeps to no rule goes on with it."""
    appended = 0
    for step in range(1, _STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "a").write_bytes(b"1\n2")
        journal = FakeJournal()
        steps.count, steps.at = 0, {step: partial(_append, folder)}
        intake = await _run(folder, journal, steps)
        if intake.refused:
            appended += 1
            place = f"{folder / 'a'} line 2 byte 3 (inode "
            assert [(raw, why) for raw, _, why in intake.refused] == [
                (b"3", "appended to a line that was taken before it had a newline")
            ]
            assert " line 2 byte 3 (inode " in intake.refused[0][1], place
            assert journal.values == [b"1", b"2"]
        else:
            assert journal.values in ([b"1", b"2"], [b"1", b"23"])
    assert appended


_COMPRESSED = {
    "gz": gzip.compress(b"1\n"),
    "bz2": bz2.compress(b"1\n"),
    "xz": lzma.compress(b"1\n"),
    "zst": b"\x28\xb5\x2f\xfd\x04\x00\x11\x00\x001\n",
    "lz4": b"\x04\x22\x4d\x18d@",
    "zip": b"PK\x03\x04\n\x00",
    "ZIP": b"PK\x05\x06" + bytes(18),  # an empty one
    "BZ2": bz2.compress(b""),
    "lzma": lzma.compress(b"1\n", format=lzma.FORMAT_ALONE),
    "GZ": "1\n".encode("utf-16"),
    "Z": '{"a": 1}\n'.encode("utf-16-le"),
    "rar": '{"a": 1}\n'.encode("utf-32-be"),
}


@pytest.mark.promise("in-file-without-lines")
@pytest.mark.parametrize("parser", [EventParser(None, 100), TextParser(100)], ids=["json", "text"])
@pytest.mark.parametrize("kind", _COMPRESSED)
async def test_a_compressed_file_is_left_as_it_is(
    tmp_path: Path, kind: str, parser: EventParser
) -> None:
    """Known by its name, also while it is empty yet, or by its first bytes. It is told once."""
    names = [f"b.jsonl.{kind}", "c.jsonl", f"d.{kind}"]
    for name, content in zip(names, (b"", _COMPRESSED[kind], b"\xff\n"), strict=True):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "a.jsonl").write_bytes(b"1\n")
    (tmp_path / "e.jsonl").write_bytes(b"2\n")
    journal, intake = FakeJournal(), FakeIntake()
    intake.journal = journal
    with capture_logs() as logs:
        source = DirectorySource(tmp_path, parser, pause=scripted_pause(quiet=3))
        await source.run(intake, None)
    assert (journal.values, intake.refused) == ([b"1", b"2"], [])
    assert _names(tmp_path) == ["a.jsonl.done", *names, "e.jsonl.done"]
    told = [Path(entry["path"]).name for entry in logs if entry["event"] == "file passed over"]
    assert told == names
    assert source.statistics().files_passed_over == 3


@pytest.mark.promise("in-folder-others-rename")
async def test_a_file_that_is_renamed_at_any_moment_is_read_once(
    tmp_path: Path, steps: _Steps
) -> None:
    """By its reader's back, while it is read or before a restart."""
    renamed = 0
    for is_down in (False, True):
        for step in range(1, _STEPS):
            folder = tmp_path / f"{is_down} {step}"
            folder.mkdir()
            (folder / "a").write_bytes(b"1\n" + bytes(300_000) + b"2\n")
            journal = FakeJournal()
            steps.count, steps.at = 0, {step: _crash if is_down else partial(_take_away, folder)}
            with contextlib.suppress(CrashedError):
                await _run(folder, journal, steps)
            steps.at = {}
            if is_down:
                _take_away(folder)
                journal.lose(0.0)
            await _run(folder, journal, steps)
            assert journal.values == [b"1", b"2"]
            assert _names(folder) in (["a.done"], ["b.done"])
            renamed += _names(folder) == ["b.done"]
    assert renamed > 20


def _take_away(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / "a").rename(folder / "b")


@pytest.mark.promise("in-folder-others-rename")
async def test_no_file_takes_the_name_of_a_link(tmp_path: Path) -> None:
    """One that points nowhere is an entry, too."""
    (tmp_path / "a").write_bytes(b"1\n")
    for name in ("a.done", ".a.1.checking"):
        (tmp_path / name).symlink_to("nowhere")
    await _read(tmp_path, FakeJournal())
    assert _names(tmp_path) == [".a.1.checking", "a.2.done", "a.done"]
    assert (tmp_path / "a.done").is_symlink()


@pytest.mark.promise("in-folder-others-rename")
async def test_a_long_name_is_cut_between_characters(tmp_path: Path) -> None:
    """A name that is no UTF-8 could not be noted: the file of a check would never be read."""
    name = "日" * 85
    (tmp_path / name).write_bytes(b"1\n")
    journal = FakeJournal()
    intake = FakeIntake(journal)

    writes = [b"2\n"]

    def write_on() -> None:
        if journal.rounds and not journal.rounds[-1].records and writes:
            with (tmp_path / name).open("ab") as file:
                file.write(writes.pop())

    intake.on_step = write_on
    await DirectorySource(tmp_path, EventParser(None, 100), follow=False).run(intake, None)
    assert journal.values == [b"1", b"2"]
    assert _names(tmp_path) == ["日" * 74 + ".done"]


@pytest.mark.promise("in-folder-written-when-done")
async def test_what_is_written_to_a_file_that_is_done_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    journal = FakeJournal()
    with (tmp_path / "a").open("ab", buffering=0) as file, capture_logs() as logs:

        def write_late() -> None:
            file.write(b"2\n")

        rest = [lambda: None] * 2
        pause = scripted_pause(*rest, write_late, *rest)
        _, source = await _read(tmp_path, journal, follow=True, pause=pause)
    assert journal.values == [b"1"]
    assert source.statistics().left_behind_bytes == 2
    assert [entry["lost_bytes"] for entry in logs if entry["log_level"] == "error"] == [2]


async def test_a_file_that_is_done_and_removed_takes_no_room_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    seen: list[bool] = []

    def look() -> None:
        found = False
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                found |= str(tmp_path / "a.done") in str(link.readlink())
        seen.append(found)

    pause = scripted_pause(look, (tmp_path / "a.done").unlink, look)
    await _read(tmp_path, FakeJournal(), follow=True, pause=pause)
    assert seen == [True, False]


@pytest.mark.promise("in-folder-two-readers")
async def test_a_folder_has_one_reader(tmp_path: Path) -> None:
    """A second one is refused by name, and may read once the first has ended."""
    (tmp_path / "a").write_bytes(b"1\n")
    journal, other = FakeJournal(), FakeJournal()
    refused: list[str] = []

    async def pause(stopping: asyncio.Event, _: float) -> None:
        with pytest.raises(SourceError, match="is read by another process") as error:
            await _read(tmp_path, other)
        refused.append(str(error.value))
        stopping.set()

    await _read(tmp_path, journal, follow=True, pause=pause)
    assert (journal.values, other.values, len(refused)) == ([b"1"], [], 1)
    (tmp_path / "b").write_bytes(b"2\n")
    await _read(tmp_path, other)
    assert other.values == [b"2"]


@pytest.mark.promise("in-file-without-lines")
@pytest.mark.parametrize(
    ("content", "is_binary"),
    [
        (bytes(range(256)) * 4, True),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0", True),
        (b"SQLite format 3\0\x10\0\1\1\0", True),
        (b"\0\0\0" + b"1\n", False),
        (b'{"a":"\xe4"}\n1\n', False),
        (b"\x1b[31mred\x1b[0m\n1\n", False),
        (b'{"a":1\0\0\0\n1\n', False),
        (b"1\n" + "ä".encode() * 600, False),
    ],
)
async def test_a_binary_file_is_no_json(tmp_path: Path, content: bytes, is_binary: bool) -> None:
    """A line that is none of JSON is a dead letter; in text all lines are events."""
    (tmp_path / "a").write_bytes(content)
    _, source = await _read(tmp_path, journal := FakeJournal())
    assert source.statistics().files_passed_over == is_binary
    assert _names(tmp_path) == ["a" if is_binary else "a.done"]
    assert (b"1" in journal.values) is not is_binary
    if is_binary:
        source = DirectorySource(tmp_path, TextParser(2_000), follow=False)
        await source.run(FakeIntake(), None)
        assert _names(tmp_path) == ["a.done"]


@pytest.mark.promise("in-file-without-lines")
async def test_what_takes_the_place_of_a_compressed_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b"0\n"))
    journal = FakeJournal()

    def unpack() -> None:
        (tmp_path / "a.tmp").write_bytes(b"1\n")
        (tmp_path / "a.tmp").rename(tmp_path / "a")

    _, source = await _read(
        tmp_path, journal, follow=True, pause=scripted_pause(lambda: None, unpack, quiet=2)
    )
    assert journal.values == [b"1"]
    assert source.statistics().files_passed_over == 1
    assert _names(tmp_path) == ["a.done"]


def test_a_folder_is_listed_when_it_changes_and_now_and_then(tmp_path: Path) -> None:
    """Not for each file, and not while nothing changes: thousands of done files may lie there."""
    looks = [0.0, 0.5, 1.0, 2.5, 3.0, 9.0, 12.4, 12.5, 13.0]
    after_a_change = [20.0, 21.0, 22.0, 23.0]
    folder = WatchedFolder(tmp_path, iter(looks + after_a_change).__next__)
    assert [at for at in looks if folder.may_have_changed()] == [0.0, 0.5, 1.0, 2.5, 12.5]
    os.utime(tmp_path, (1, 1))
    assert [at for at in after_a_change if folder.may_have_changed()] == [20.0, 21.0, 22.0]
    missing = WatchedFolder(tmp_path / "missing")
    assert missing.may_have_changed()
    assert missing.may_have_changed()


async def test_one_listing_serves_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = 0
    listdir = os.listdir

    def counted(path: Path) -> list[str]:
        nonlocal listings
        listings += path == tmp_path
        return listdir(path)

    for number in range(50):
        (tmp_path / f"{number:02}").write_bytes(b"%d\n" % number)
    monkeypatch.setattr(os, "listdir", counted)
    await _read(tmp_path, journal := FakeJournal())
    assert len(journal.values) == 50
    assert listings == 2


async def test_a_name_used_thousands_of_times_is_found_a_free_one(tmp_path: Path) -> None:
    """By few looks; braces in a name are no format."""
    for number in ("", *(f".{number}" for number in range(2, 301))):
        (tmp_path / f"{{a}}{number}.done").touch()
    (tmp_path / "{a}").write_bytes(b"1\n")
    looked = 0
    lstat = os.lstat

    def counted(path: Any, **options: Any) -> os.stat_result:
        nonlocal looked
        looked += str(path).endswith(".done")
        return lstat(path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "lstat", counted)
        await _read(tmp_path, FakeJournal())
    assert (tmp_path / "{a}.301.done").exists()
    assert 0 < looked < 30


@pytest.mark.promise("in-hole-of-nulls")
async def test_holes_are_passed_over(tmp_path: Path) -> None:
    """At the beginning, between lines, at the end, and in a file that is nothing else."""
    (tmp_path / "a").write_bytes(b"\0" * 300_000 + b"1\n\0\0" + b"2\n\0\0\0\n" + b"\0" * 7)
    (tmp_path / "b").write_bytes(b"\0" * 4_000)
    (tmp_path / "c").write_bytes(b"\0\0" + b"3")
    journal = FakeJournal()
    intake, source = await _read(tmp_path, journal)
    assert journal.values == [b"1", b"2", b"3"]
    assert intake.refused == []
    assert source.statistics().hole_bytes == 300_000 + 2 + 3 + 7 + 4_000 + 2
    assert _names(tmp_path) == ["a.done", "b.done", "c.done"]


async def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """Rather than waiting for ever at a misspelt path."""
    with pytest.raises(SourceError, match="is not there"):
        await _read(tmp_path / "missing", FakeJournal(), follow=True)


async def test_a_position_of_something_else_is_refused(tmp_path: Path) -> None:
    """Rather than beginning anew."""
    source = DirectorySource(tmp_path, EventParser(None, 100))
    with pytest.raises(PositionError):
        await source.run(FakeIntake(), b"{}")


_CALLS = ("open", "rename", "replace", "stat", "fstat", "scandir", "pread", "fsync", "unlink")
_STEPS = 60


class _Steps:
    """Counts what the source asks of disk and journal; the writer acts, or all ends, at a step.

    Other tests' threads may still run in this process: what they ask is no step.
    """

    def __init__(self) -> None:
        self.at: dict[int, Callable[[], None]] = {}
        self.count = 0
        self._hushed = False
        self._thread = threading.current_thread()

    def __call__(self) -> None:
        if self._hushed or threading.current_thread() is not self._thread:
            return
        self.count += 1
        action = self.at.get(self.count)
        if action is not None:
            self._hushed = True
            try:
                action()
            finally:
                self._hushed = False


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Steps]:
    """Each call of the file system is a step."""
    steps = _Steps()

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **named: Any) -> Any:
            steps()
            return call(*args, **named)

        return stepped

    with monkeypatch.context() as patch:
        for name in _CALLS:
            patch.setattr(os, name, stepping(getattr(os, name)))
        yield steps


def _put(folder: Path, content: bytes) -> None:
    (folder / "a.part").write_bytes(content)
    (folder / "a.part").rename(folder / "a")


def _append(folder: Path) -> None:
    """As a writer does who keeps to no rule."""
    if (folder / "a").exists():
        with (folder / "a").open("ab") as file:
            file.write(b"3\n")


async def _run(folder: Path, journal: FakeJournal, steps: _Steps, **options: Any) -> FakeIntake:
    """Read until the folder has nothing left."""
    intake = FakeIntake(journal)
    intake.on_step = steps
    source = DirectorySource(folder, EventParser(None, 100), follow=False, **options)
    await source.run(intake, journal.position)
    return intake


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _assert_all_read(folder: Path, journal: FakeJournal) -> None:
    """Nothing is left, and nothing is called done that was not read."""
    contents = _contents(folder)
    assert [name for name in contents if not name.endswith(".done")] == []
    done = [line for content in contents.values() for line in content.splitlines()]
    assert [line for line in done if line not in journal.values] == []


@pytest.mark.promise("in-writer-replaces-file")
async def test_a_file_that_is_replaced_at_any_moment_is_read(tmp_path: Path, steps: _Steps) -> None:
    """The new content is read, once, whenever it came; the old one was read or was never ours."""
    met = 0
    for step in range(1, _STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "a").write_bytes(b"1\n2\n")
        (folder / "b").write_bytes(b"9\n")
        journal = FakeJournal()
        steps.count, steps.at = 0, {step: partial(_put, folder, b"3\n4\n")}
        await _run(folder, journal, steps)
        reached = steps.count >= step
        met += reached
        steps.at = {}
        await _run(folder, journal, steps)
        _assert_all_read(folder, journal)
        if reached:
            assert [value for value in journal.values if value in {b"3", b"4"}] == [b"3", b"4"]
        assert [value for value in journal.values if value in {b"1", b"2"}] in (
            [b"1", b"2"],
            [],  # it was replaced before it was opened
        )
    assert met > 10


@pytest.mark.promise("in-writer-replaces-file")
async def test_a_file_that_is_written_on_at_any_moment_is_read_to_its_end(
    tmp_path: Path, steps: _Steps
) -> None:
    """Lines that came after the end was read are read, too, and none twice."""
    for step in range(1, _STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "a").write_bytes(b"1\n2\n")
        journal = FakeJournal()
        steps.count, steps.at = 0, {step: partial(_append, folder)}
        await _run(folder, journal, steps)
        steps.at = {}
        await _run(folder, journal, steps)
        _assert_all_read(folder, journal)
        assert journal.values in ([b"1", b"2", b"3"], [b"1", b"2"])


@pytest.mark.promise("in-writer-replaces-file")
@pytest.mark.parametrize("content", [b"3\n4\n", b"1\n2\n", b"1\n2\n3\n"])
async def test_a_replacement_and_a_crash_at_any_moment_lose_nothing(
    tmp_path: Path, steps: _Steps, content: bytes
) -> None:
    """The crash may come right behind the replacement or some steps later, as in a power cut."""
    for step in range(1, 34):
        for later in (1, 2, 3, 5, 8):
            folder = tmp_path / f"{step} {later}"
            folder.mkdir()
            (folder / "a").write_bytes(b"1\n2\n")
            journal = FakeJournal()
            steps.count = 0
            steps.at = {
                step: partial(_put, folder, content),
                step + later: _crash,
            }
            with contextlib.suppress(CrashedError):
                await _run(folder, journal, steps)
            reached = steps.count >= step
            steps.at = {}
            journal.lose(0.0)
            await _run(folder, journal, steps)
            _assert_all_read(folder, journal)
            if reached:
                # What the writer put there last came behind what it had put there before.
                lines = content.splitlines()
                assert journal.values[-len(lines) :] == lines


async def test_a_file_that_was_taken_by_its_reader_is_read_after_a_crash(tmp_path: Path) -> None:
    """What stands under the name of a check, and was not read, is read before anything else."""
    (tmp_path / ".a.1.checking").write_bytes(b"1\n")
    (tmp_path / "a").write_bytes(b"2\n")
    journal = FakeJournal()
    await _run(tmp_path, journal, _Steps())
    assert journal.values == [b"1", b"2"]
    assert _contents(tmp_path) == {"a.done": b"1\n", "a.2.done": b"2\n"}

"""What could not be sent is kept, and never again lost."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import DeadLettersFullError
from sequitur.producer.sources._dead_letter import DeadLetterFile

if TYPE_CHECKING:
    from pathlib import Path
from tests.support.dead_letter_file import DeadLetterEntry, read_dead_letters


@pytest.mark.promise("in-hole-of-nulls")
def test_the_nulls_of_a_hole_do_not_use_up_an_entry(tmp_path: Path) -> None:
    """An entry that is cut keeps each run of NULs as one; one that is not cut is as it was."""
    long, short = b"a" + b"\0" * 70_000 + b"b", b"a\0\0b"
    with DeadLetterFile(tmp_path / "letters") as letters:
        letters.write("s", "1", "no JSON", long)
        letters.write("s", "2", "no JSON", short)
    entries = [*read_dead_letters(tmp_path / "letters")]
    assert [entry.raw for entry in entries] == [b"a\0b", short]
    assert [entry.raw_length for entry in entries] == [len(long), len(short)]


def test_an_entry_says_where_and_why(tmp_path: Path) -> None:
    """Any bytes come back as they were."""
    path = tmp_path / "new" / "dead.jsonl"
    with DeadLetterFile(path, now_ms=lambda: 1_700_000_000_123) as file:
        file.write("file:a", "a line 3 byte 20", "no JSON", b"\xff\x00\n{")
        assert file.written == 1
    expected = DeadLetterEntry(
        source="file:a",
        where="a line 3 byte 20",
        reason="no JSON",
        raw=b"\xff\x00\n{",
        raw_length=4,
        at_ms=1_700_000_000_123,
    )
    assert list(read_dead_letters(path)) == [expected]


def test_an_entry_is_bounded(tmp_path: Path) -> None:
    """Of a huge event only the beginning is kept, with its length."""
    path = tmp_path / "dead.jsonl"
    with DeadLetterFile(path, max_raw_bytes=10) as file:
        file.write("stdin", "line 1", "too long", b"x" * 1000)
    (entry,) = read_dead_letters(path)
    assert (entry.raw, entry.raw_length) == (b"x" * 10, 1000)


def test_an_entry_is_written_whatever_it_quotes(tmp_path: Path) -> None:
    """And it is known again when its source is read again."""
    path = tmp_path / "dead.jsonl"
    for _ in range(2):
        with DeadLetterFile(path) as file:
            file.skip_places_behind(f"{path.stat().st_ino}:0")
            file.write("file:\udcff", "\udcff line 1", "half \ud83d", b"x")
    (entry,) = read_dead_letters(path)
    assert (entry.source, entry.where) == ("file:\\udcff", "\\udcff line 1")
    assert entry.reason == "half \\ud83d"


@pytest.mark.promise("in-kafka-refuses-event")
def test_what_kafka_refused_is_kept_whole(tmp_path: Path) -> None:
    """Payload, key, headers and timestamp: with them it can be sent again as it was."""
    path = tmp_path / "dead.jsonl"
    value, headers = b"\xff" * 300_000, (("trace", b"\x00"), ("trace", None))
    with DeadLetterFile(path) as file:
        file.write_whole(
            "http", "event a:1", "refused", value, key=b"k", headers=headers, timestamp_ms=5
        )
        file.write_whole("http", "event a:2", "refused", None)
    large, tombstone = read_dead_letters(path)
    assert (large.raw, large.raw_length, large.key) == (value, 300_000, b"k")
    assert (large.headers, large.timestamp_ms) == (headers, 5)
    assert (tombstone.raw, tombstone.headers, tombstone.timestamp_ms) == (None, (), None)


@pytest.mark.promise("in-http-client-sends-invalid")
def test_the_second_half_is_for_what_nobody_else_has(tmp_path: Path) -> None:
    """Who has his event still and is told of it may fill the first half."""
    path = tmp_path / "dead.jsonl"
    found = []
    with DeadLetterFile(path, limit_bytes=300) as file:
        found.append(file.is_half_full)
        file.write("http", "line 1", "no JSON", b"x" * 60)
        found.append(file.is_half_full)
    with DeadLetterFile(path) as file:
        found.append(file.is_half_full)  # without a limit there is no half
    assert found == [False, True, False]


def test_it_is_only_ever_appended_to(tmp_path: Path) -> None:
    """A later daemon adds to what an earlier one left."""
    path = tmp_path / "dead.jsonl"
    for where in ("first", "second"):
        with DeadLetterFile(path) as file:
            file.write("stdin", where, "no JSON", b"")
    assert [entry.where for entry in read_dead_letters(path)] == ["first", "second"]


def test_a_cut_entry_does_not_spoil_the_next(tmp_path: Path) -> None:
    """After a crash in the middle of an entry the next one stands on a line of its own."""
    path = tmp_path / "dead.jsonl"
    with DeadLetterFile(path) as file:
        file.write("stdin", "first", "no JSON", b"")
    with path.open("ab") as raw:
        raw.write(b'{"source":"st')
    with DeadLetterFile(path) as file:
        file.write("stdin", "second", "no JSON", b"")
    assert [entry.where for entry in read_dead_letters(path)] == ["first", "second"]


@pytest.mark.promise("in-dead-letter-file")
def test_it_keeps_its_limit(tmp_path: Path) -> None:
    """Also over a restart; an entry is there wholly or not at all, and what is lacking is said."""
    path = tmp_path / "dead.jsonl"
    with DeadLetterFile(path) as file:
        file.write("stdin", "first", "no JSON", b"")
    size = path.stat().st_size
    with DeadLetterFile(path, limit_bytes=2 * size) as file:
        with pytest.raises(DeadLettersFullError, match="Not stored was second: no JSON") as full:
            file.write("stdin", "second", "no JSON", b"x" * 100)
        assert f"{path} has {size} bytes, and dead_letter_limit is {2 * size}" in str(full.value)
        assert path.stat().st_size == size
        file.write("stdin", "third", "no JSON", b"")
        assert file.written == 1
    assert [entry.where for entry in read_dead_letters(path)] == ["first", "third"]


@pytest.mark.promise("in-disk-full-middle")
def test_a_full_disk_is_named_and_leaves_no_part_of_an_entry(tmp_path: Path) -> None:
    """The kernel takes the beginning of an entry, and then nothing."""
    path = tmp_path / "dead.jsonl"
    with DeadLetterFile(path) as file:
        file.write("stdin", "first", "no JSON", b"")
        size = path.stat().st_size
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
        try:
            with pytest.raises(DeadLettersFullError, match="Not stored was second") as full:
                file.write("stdin", "second", "no JSON", b"x" * 100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert f"the dead-letter file {path} cannot be written: File too large" in str(full.value)
        assert path.stat().st_size == size
        file.write("stdin", "third", "no JSON", b"")
        assert file.written == 2
    assert [entry.where for entry in read_dead_letters(path)] == ["first", "third"]
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.promise("in-disk-full-middle")
def test_a_sync_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may say so only then."""

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "dead.jsonl"
    with DeadLetterFile(path) as file:
        file.write("stdin", "first", "no JSON", b"")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", no_space)
            with pytest.raises(DeadLettersFullError, match=f"{path} cannot be written: No space"):
                file.sync()
        assert file.owes_sync


def test_a_sync_without_entries_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it can stand before each round of the journal."""
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    with DeadLetterFile(tmp_path / "dead.jsonl") as file:
        file.sync()
        assert syncs == []
        file.write("stdin", "line 1", "no JSON", b"")
        file.sync()
        file.sync()
        assert len(syncs) == 1


@pytest.mark.promise("in-line-malformed-utf")
def test_what_a_source_reads_again_is_not_written_again(tmp_path: Path) -> None:
    """After a crash: what stands behind the mark of the last position; each entry once."""
    path = tmp_path / "dead.jsonl"
    with DeadLetterFile(path) as file:
        file.write("file:a", "line 1", "no JSON", b"before")
        mark = file.mark
        file.write("file:a", "line 2", "no JSON", b"{")
        file.write("file:a", "line 3", "no JSON", b"[")
    with DeadLetterFile(path) as file:
        file.skip_places_behind(mark)
        file.write("file:a", "line 2", "no JSON", b"{")
        file.write("file:a", "line 3", "no JSON", b"other bytes by now")
        assert file.written == 1
        # Another line there, after the file was cut: it was not expected again.
        file.write("file:a", "line 2", "no JSON", b"{")
        file.write("file:a", "line 1", "no JSON", b"before")
        file.write("file:b", "line 3", "no JSON", b"[")
        assert file.written == 4
    found = [(entry.source[-1], entry.where[-1], entry.raw) for entry in read_dead_letters(path)]
    assert found == [
        *(("a", "1", b"before"), ("a", "2", b"{"), ("a", "3", b"[")),
        *(("a", "3", b"other bytes by now"), ("a", "2", b"{"), ("a", "1", b"before")),
        ("b", "3", b"["),
    ]


def test_a_mark_of_a_file_that_was_moved_away_leaves_the_new_one_out(tmp_path: Path) -> None:
    """All of the new one is behind it; without a mark nothing is expected again."""
    path = tmp_path / "dead.jsonl"
    with DeadLetterFile(path) as file:
        file.write("file:a", "line 1", "no JSON", b"x" * 1_000)
        mark = file.mark
        path.rename(tmp_path / "moved")
        with DeadLetterFile(path) as new:
            new.write("file:a", "line 2", "no JSON", b"{")
            for known in (mark, None):
                new.skip_places_behind(known)
                new.write("file:a", "line 2", "no JSON", b"{")
            assert new.written == 2


@pytest.mark.promise("in-line-malformed-utf")
def test_an_event_that_is_given_up_again_is_not_written_again(tmp_path: Path) -> None:
    """It is known by its id; a crash may have cut an entry before it."""
    path = tmp_path / "dead.jsonl"
    with DeadLetterFile(path) as file:
        file.write("http", "event a:7", "no JSON", b"")
        file.write_whole("http", "event a:1 on the way to topic t", "refused", b"1")
        file.write_whole("http", "on the way to topic t", "refused", b"without an id")
    with path.open("ab") as raw:
        raw.write(b'{"source":"st')
    with DeadLetterFile(path) as file:
        file.skip_known_ids()
        file.write_whole("http", "event a:1 on the way to topic t", "refused", b"1")
        file.write_whole("http", "event a:2 on the way to topic t", "refused", b"2")
        file.write_whole("http", "on the way to topic t", "refused", b"without an id")
        assert file.written == 2
    assert len(list(read_dead_letters(path))) == 5

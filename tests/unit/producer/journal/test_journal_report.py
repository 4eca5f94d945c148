"""What `sequitur journal show` and `verify` tell about a journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from sequitur.kafka.identity import Identity
from sequitur.producer.journal.frames import Renewal, SourcePosition
from sequitur.producer.journal.frames import encode_preamble as preamble
from sequitur.producer.journal.journal import Journal
from sequitur.producer.journal.report import (
    JournalReport,
    JournalVerdict,
    inspect_journal,
    report_as_json,
    report_as_tables,
)
from sequitur.producer.journal.segments import JournalLimits
from tests.unit.producer.journal.test_journal import ack, batch, waiting

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal of several segments, all synced, with some of everything in it."""
    limits = JournalLimits(segment_bytes=4096, limit_bytes=64 * 4096)
    with Journal.open(tmp_path, producer="cpu-readings", limits=limits) as journal:
        journal.append([Renewal(Identity(7, 0)), batch(0), SourcePosition("file", b"line 10")])
        for base in range(10, 150, 10):
            journal.append([batch(base, body_bytes=700)])
            journal.sync()
        journal.append([ack(batch(0)), SourcePosition("cursor", b"\xff\x00")])
        journal.append([waiting(150)])
    return tmp_path


def lines(report: JournalReport) -> str:
    console = Console(width=160, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(report_as_tables(report))
    return capture.get()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_sound_journal_is_shown_whole(directory: Path) -> None:
    """Identity, positions, partitions and segments, and exit status 0."""
    report = inspect_journal(directory)
    assert (report.verdict, report.exit_status, report.problems) == (JournalVerdict.SOUND, 0, ())
    assert (report.producer, report.producer_id, report.epoch) == ("cpu-readings", 7, 0)
    assert report.next_event == 160
    assert report.positions == {"file": "line 10", "cursor": "ff00"}
    assert len(report.segments) == 3
    assert report.segments[0].frames == {"head": 1, "renewal": 1, "batch": 6, "position": 1}
    (partition,) = report.partitions
    assert (partition.topic, partition.next_sequence, partition.through_event) == ("cpu", 150, 149)
    firsts = [(one.base_sequence, one.first_event, one.records) for one in partition.unacked]
    assert firsts == [(n, n, 10) for n in range(10, 150, 10)]
    assert all(700 < one.bytes < 900 for one in partition.unacked)
    assert [(one.first_event, one.last_event) for one in partition.waiting] == [(150, 159)]


def test_the_report_is_readable_by_people_and_by_programs(directory: Path) -> None:
    """Tables for a terminal, JSON with the same content."""
    report = inspect_journal(directory)
    shown = lines(report)
    for text in ("cpu-readings", "sound", "position of file", "line 10", "cpu-0", "6 batch"):
        assert text in shown
    document = json.loads(report_as_json(report))
    assert document["verdict"] == "sound"
    assert document["partitions"][0]["unacked"][0]["base_sequence"] == 10


def test_the_journal_of_a_running_producer_is_looked_at_without_a_lock(tmp_path: Path) -> None:
    """`show` needs no stop, and changes nothing."""
    with Journal.open(tmp_path, producer="p") as journal:
        journal.append([batch(0)])
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert inspect_journal(tmp_path).verdict == JournalVerdict.SOUND
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_torn_tail_is_told_and_is_no_fault(directory: Path) -> None:
    """A crash leaves one; a producer can start on it, so the exit status is 0."""
    newest = max(directory.glob("*.journal"))
    newest.write_bytes(newest.read_bytes()[:-3])
    report = inspect_journal(directory)
    assert (report.verdict, report.exit_status) == (JournalVerdict.TORN, 0)
    assert "torn tail of" in lines(report)


def test_all_damage_is_told(directory: Path) -> None:
    """Each place in each segment, what is lost and what follows; exit status 1."""
    first, second = sorted(directory.glob("*.journal"))[:2]
    flip(first, 300)
    flip(first, 2000)
    flip(second, 1000)
    report = inspect_journal(directory)
    assert (report.verdict, report.exit_status) == (JournalVerdict.CORRUPT, 1)
    assert [len(segment.damages) for segment in report.segments] == [2, 1, 0]
    assert lines(report).count("good frame(s) follow from offset") == 3


def test_a_missing_a_renamed_and_a_shortened_segment_are_told(directory: Path) -> None:
    """What no single segment shows is seen from its neighbours."""
    first, second, third = sorted(directory.glob("*.journal"))
    first.write_bytes(first.read_bytes()[: -len(batch(0, body_bytes=700).data) - 50])
    second.rename(third)
    report = inspect_journal(directory)
    assert report.exit_status == 1
    text = lines(report)
    assert f"missing: {second.name}" in text
    assert f"{third.name} does not begin with a readable head" in text


def test_a_shortened_older_segment_is_told(directory: Path) -> None:
    """The next head knows its length, also when it was cut between two rounds."""
    first, second = sorted(directory.glob("*.journal"))[:2]
    data = first.read_bytes()
    first.write_bytes(data[: data.rindex(b"\xabSQF")])
    expected = f"but had {len(data)} when {second.name} was begun"
    assert any(expected in problem for problem in inspect_journal(directory).problems)


@pytest.mark.parametrize("kind", ["missing", "empty", "newer"])
def test_what_is_no_journal_of_ours_is_exit_status_2(tmp_path: Path, kind: str) -> None:
    """No directory, no segments or a newer format: nothing is judged."""
    directory = tmp_path / "journal"
    if kind != "missing":
        directory.mkdir()
    if kind == "newer":
        (directory / f"{1:020d}.journal").write_bytes(preamble(1, version=9))
    report = inspect_journal(directory)
    assert (report.verdict, report.exit_status) == (JournalVerdict.UNREADABLE, 2)
    expected = {"missing": "cannot be read", "empty": "no journal", "newer": "version 9"}[kind]
    assert expected in report.problems[0]
    assert expected in lines(report)


def test_each_flipped_byte_of_a_journal_is_reported_without_a_crash(directory: Path) -> None:
    """Whatever byte of whatever segment changes, `verify` answers and says that it did."""
    paths = sorted(directory.glob("*.journal"))
    for path in paths:
        data = path.read_bytes()
        for at in range(0, len(data), 31):
            flip(path, at)
            verdict = inspect_journal(directory).verdict
            assert verdict == JournalVerdict.CORRUPT or (
                path == paths[-1] and verdict == JournalVerdict.TORN
            )
            path.write_bytes(data)

"""The journal's files: one holder, a limit, room given back, and a disk that fails."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from sequitur.errors import (
    JournalBusyError,
    JournalCorruptError,
    JournalError,
    JournalFailedError,
    JournalFullError,
    JournalLockedError,
    JournalNameError,
    JournalVersionError,
)
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_batch import NO_STAMP, Stamp, batch_of, stamped
from sequitur.producer.journal.disk import RealDisk
from sequitur.producer.journal.frames import (
    Ack,
    Acks,
    BatchFrame,
    Commit,
    Drop,
    Frame,
    Number,
    Numbered,
    PartitionState,
    Renewal,
    Restamp,
    SourcePosition,
    Waiting,
    WaitingKey,
    encode_preamble,
)
from sequitur.producer.journal.journal import Journal
from sequitur.producer.journal.segments import MIN_SEGMENT_BYTES, JournalLimits
from tests.property.journal_model import ModelDisk, ModelFile, PowerCut, record_batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sequitur.producer.journal.disk import DiskFile

_SMALL = JournalLimits(segment_bytes=4096, limit_bytes=4 * 4096)
_FORKING_HOLDER = """
import os, pathlib, sys
from sequitur.producer.journal.journal import Journal
journal = Journal.open(pathlib.Path(sys.argv[1]), producer="p")
closing = os.fork()
if not closing:
    journal.close()
    os._exit(0)
assert os.waitpid(closing, 0)[1] == 0
print("closed by a child", flush=True)
if not os.fork():
    print(os.getpid(), flush=True)
sys.stdin.read()
"""
_HOLDER = """
import pathlib, sys, time
from sequitur.producer.journal.journal import Journal
journal = Journal.open(pathlib.Path(sys.argv[1]), producer="p")
print("held", flush=True)
time.sleep(60)
"""
_IDENTITY = Renewal(Identity(7, 0))


def batch(
    base: int, *, partition: int = 0, body_bytes: int = 100, event: int | None = None
) -> BatchFrame:
    """A batch of ten records; event sequences as the base sequence unless told."""
    first = base if event is None else event
    data = record_batch(Stamp(7, 0, base), b"x" * body_bytes)
    return BatchFrame("cpu", partition, 7, 0, base, 10, first, first + 9, None, data=data)


def waiting(event: int, *, partition: int = 0, body_bytes: int = 100, last_ms: int = 5) -> Waiting:
    """A batch of ten records without numbers."""
    data = record_batch(NO_STAMP, b"w" * body_bytes, 0, last_ms)
    return Waiting("cpu", partition, event, event + 9, 10, 0, last_ms, data=data)


def number(of: Waiting, base: int, timestamp_ms: int = -1) -> Number:
    return Number(*of.key, of.last_event_sequence, 10, 7, 0, base, timestamp_ms)


def held(journal: Journal) -> dict[tuple[str, int], tuple[BatchFrame | Waiting, ...]]:
    """What a journal recovered, with the bytes; what has numbers before what has none."""
    found: dict[tuple[str, int], tuple[BatchFrame | Waiting, ...]] = {}
    for batches in (journal.recovered.unacked, journal.recovered.waiting):
        for partition, those in batches.items():
            whole = tuple(msgspec.structs.replace(one, data=journal.read(one.key)) for one in those)
            found[partition] = found.get(partition, ()) + whole
    return found


def ack(*batches: BatchFrame) -> Acks:
    return Acks(tuple(Ack(*batch.key, offset=5) for batch in batches))


def on(disk: ModelDisk, limits: JournalLimits = _SMALL) -> Journal:
    return Journal.open_on(disk, producer="p", limits=limits)


def segments(disk: ModelDisk) -> list[int]:
    return sorted(int(name.split(".")[0]) for name in disk.names())


def settle(journal: Journal) -> None:
    """Waits for the disk and gives room back."""
    if journal.sync():
        journal.reclaim()


def has_room(journal: Journal, data_bytes: int) -> bool:
    """Whether a round with so many bytes of batches would fit now."""
    room = journal._segments.room_bytes(reserve=False)
    return data_bytes + data_bytes // 8 + MIN_SEGMENT_BYTES <= room


def fill(journal: Journal, *, keep_bytes: int = 0) -> list[BatchFrame]:
    """Appends batches until the journal is full."""
    sent: list[BatchFrame] = []
    with contextlib.suppress(JournalFullError):
        while has_room(journal, keep_bytes):
            sent.append(batch(len(sent) * 10, body_bytes=500))
            journal.append([sent[-1]])
            settle(journal)
    return sent


def test_a_restart_has_all_that_was_not_acked(tmp_path: Path) -> None:
    """Identity, exact bytes in order, what waits, numbering and positions are on a real disk."""
    sent = [batch(0), batch(10), batch(0, partition=1, event=20)]
    late = waiting(30, partition=1)
    with Journal.open(tmp_path / "p", producer="p") as journal:
        assert journal.recovered.fresh
        journal.append([_IDENTITY, *sent, SourcePosition("file", b"line 30")])
        journal.append([late, SourcePosition("stdin", b"1")])
        settle(journal)
        journal.append([ack(sent[0])])
    with Journal.open(tmp_path / "p", producer="p") as journal:
        found = journal.recovered
        assert held(journal) == {("cpu", 0): (sent[1],), ("cpu", 1): (sent[2], late)}
    assert not found.fresh
    assert found.torn is None
    assert found.identity == Identity(7, 0)
    assert found.next_event_sequence == 40
    assert found.positions == {"file": b"line 30", "stdin": b"1"}
    assert found.partitions == {
        ("cpu", 0): PartitionState("cpu", 0, 7, 0, 20, 19),
        ("cpu", 1): PartitionState("cpu", 1, 7, 0, 10, 29),
    }


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    """The journal holds payloads; others on the machine do not read them."""
    Journal.open(tmp_path / "p", producer="p").close()
    assert (tmp_path / "p").stat().st_mode & 0o777 == 0o700
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "p").iterdir()}
    assert modes == {0o600}


def test_a_second_process_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
    """One durable name, one process; the lock goes when the holder dies, however it dies."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _HOLDER,
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    with holder, contextlib.ExitStack() as cleanup:
        cleanup.callback(holder.kill)
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(JournalLockedError, match=f"held by process {holder.pid}") as refused:
            Journal.open(tmp_path, producer="p")
        assert refused.value.pid == holder.pid
    Journal.open(tmp_path, producer="p").close()


@pytest.mark.promise("in-process-killed-forked")
def test_a_forked_child_neither_keeps_the_lock_nor_gives_it_up(tmp_path: Path) -> None:
    """Not the one that closes the journal while the holder lives, nor the one that outlives it."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _FORKING_HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder, contextlib.ExitStack() as cleanup:
        cleanup.callback(holder.kill)
        assert holder.stdout.readline() == "closed by a child\n"
        child = int(holder.stdout.readline())
        with pytest.raises(JournalLockedError, match=f"held by process {holder.pid}"):
            Journal.open(tmp_path, producer="p")
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives
        Journal.open(tmp_path, producer="p").close()
        os.kill(child, 0)
        holder.stdin.close()  # it reads that


def test_another_producers_journal_is_refused() -> None:
    """Two names never share event sequences."""
    disk = ModelDisk()
    on(disk).close()
    with pytest.raises(JournalNameError, match="belongs to producer 'p', not to 'q'"):
        Journal.open_on(disk, producer="q")


@pytest.mark.promise("in-journal-format-version")
@pytest.mark.parametrize(("version", "age"), [(1, "older"), (2, "older"), (4, "newer")])
def test_another_format_is_refused_and_left_alone(tmp_path: Path, version: int, age: str) -> None:
    """A program neither reads nor cuts a journal of another format, and says how to go on."""
    other = encode_preamble(1, version=version) + b"what only the other one reads"
    path = tmp_path / "00000000000000000001.journal"
    path.write_bytes(other)
    with pytest.raises(JournalVersionError, match=f"version {version}.*let the {age} version"):
        Journal.open(tmp_path, producer="p")
    assert path.read_bytes() == other


def test_a_directory_that_cannot_be_used_is_an_error_of_ours(tmp_path: Path) -> None:
    """The caller sees which directory, not a bare OSError."""
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(JournalFailedError, match=r"could not open the journal in .*file"):
        Journal.open(tmp_path / "file", producer="p")


@pytest.mark.promise("in-write-journal-torn")
def test_damage_is_refused_with_place_loss_and_what_follows(tmp_path: Path) -> None:
    """The error names the segment, the offset, what is lost and what can still be read."""
    with Journal.open(tmp_path, producer="p") as journal:
        for base in (0, 10, 20):
            journal.append([batch(base)])
            settle(journal)
    path = tmp_path / "00000000000000000001.journal"
    data = bytearray(path.read_bytes())
    at = data.index(batch(10).data)
    data[at + 30] ^= 4
    path.write_bytes(data)
    with pytest.raises(JournalCorruptError) as refused:
        Journal.open(tmp_path, producer="p")
    assert refused.value.segment == path.name
    assert at - 100 < refused.value.offset < at
    assert "its header says Batch" in refused.value.lost
    assert "1 good frame(s) follow" in refused.value.follows
    assert path.read_bytes() == bytes(data)


@pytest.mark.promise("in-write-journal-torn")
def test_a_torn_tail_is_cut_and_told() -> None:
    """The unfinished round is gone, the ones before it are there, and the caller can log it."""
    disk = ModelDisk()
    journal = on(disk)
    journal.append([batch(0)])
    journal.append([batch(10)])
    name = "00000000000000000001.journal"
    disk.files[name].content = disk.files[name].content[:-1]
    journal = on(disk.after_kill())
    found = journal.recovered
    assert held(journal) == {("cpu", 0): (batch(0),)}
    assert found.torn is not None
    assert (found.torn.segment, found.torn.frames) == (1, 0)
    assert on(disk.after_kill()).recovered.torn is None


def test_what_a_killed_process_has_written_is_on_the_disk_before_it_is_used() -> None:
    """The next life sends it, so a power cut then must leave it, and its place in the count."""
    disk, sent = ModelDisk(), batch(0)
    on(disk).append([_IDENTITY, sent])
    assert held(on(disk.after_kill())) == {("cpu", 0): (sent,)}
    assert held(on(disk.after_power_cut(lambda low, _: low))) == {("cpu", 0): (sent,)}


@pytest.mark.parametrize("gone", [2, 3])
def test_a_segment_lost_from_the_middle_is_refused(gone: int) -> None:
    """The names alone show that frames are missing."""
    disk = ModelDisk()
    journal = on(disk, JournalLimits(4096, 16 * 4096))
    for base in range(0, 300, 10):
        journal.append([batch(base, body_bytes=700)])
        settle(journal)
    assert segments(disk)[:4] == [1, 2, 3, 4]
    disk.unlink(f"{gone:020d}.journal")
    with pytest.raises(JournalCorruptError, match=f"{gone:020d}.journal is damaged.*missing"):
        on(disk.after_kill())


def test_an_older_segment_cut_at_a_rounds_end_is_refused() -> None:
    """The next segment's head knows how long it was."""
    disk = ModelDisk()
    journal = on(disk)
    lengths = [0]
    for base in range(0, 100, 10):
        journal.append([batch(base, body_bytes=700)])
        if segments(disk) == [1]:
            lengths.append(disk.used_bytes)
        settle(journal)
    first = disk.files["00000000000000000001.journal"]
    first.content = first.content[: lengths[-2]]
    with pytest.raises(JournalCorruptError, match=r"0001\.journal is damaged.*when .*0002"):
        on(disk.after_kill())


def test_acked_segments_are_removed() -> None:
    """Files stay about as large as what is un-acked."""
    disk = ModelDisk()
    journal = on(disk)
    journal.append([_IDENTITY])
    for base in range(0, 2000, 10):
        sent = batch(base, body_bytes=700)
        journal.append([sent])
        settle(journal)
        journal.append([ack(sent)])
    assert disk.used_bytes <= 2 * 4096
    journal.close()
    found = on(disk).recovered
    assert (found.identity, found.unacked) == (Identity(7, 0), {})
    assert found.next_event_sequence == 2000
    assert found.partitions["cpu", 0].next_sequence == 2000


@pytest.mark.parametrize("steps", range(6))
def test_segments_are_removed_one_after_the_other_also_on_the_disk(steps: int) -> None:
    """Else a power cut could keep an older one than it has removed, as if one had been lost."""
    disk, asked = ModelDisk(), itertools.count()
    journal = on(disk, JournalLimits(4096, 16 * 4096))
    sent = [batch(base, body_bytes=700) for base in range(0, 200, 10)]
    for one in sent:
        journal.append([one])
        settle(journal)
    journal.append([ack(*sent)])
    assert journal.sync()
    assert segments(disk) == [1, 2, 3, 4]
    disk.steps_left = steps
    with pytest.raises(PowerCut):
        journal.reclaim()
    # Of the removals that are not synced the first alone does not reach the disk.
    left = disk.after_power_cut(lambda low, high: low if next(asked) == 1 else high)
    assert held(on(left)) == {}


def test_one_slow_partition_does_not_keep_the_segments_of_the_others() -> None:
    """A new segment takes over the little that is live, so that the old ones can go."""
    disk = ModelDisk()
    journal = on(disk)
    slow = batch(0, partition=1, body_bytes=50)
    journal.append([_IDENTITY, slow])
    for base in range(10, 2000, 10):
        sent = batch(base, body_bytes=700)
        journal.append([sent])
        settle(journal)
        journal.append([ack(sent)])
    assert segments(disk)[0] > 20
    journal.close()
    assert held(on(disk)) == {("cpu", 1): (slow,)}


def test_a_taken_over_batch_does_not_take_its_position_back() -> None:
    """Copies of old batches in a new segment leave the newest position alone."""
    disk = ModelDisk()
    journal = on(disk)
    old = BatchFrame("cpu", 1, 7, 0, 0, 1, 0, 0, SourcePosition("file", b"1"), data=batch(0).data)
    journal.append([_IDENTITY, old])
    journal.append([SourcePosition("file", b"2")])
    journal.close()
    journal = on(disk)
    assert segments(disk) == [1, 2]
    settle(journal)
    assert segments(disk) == [2]
    journal.close()
    assert on(disk).recovered.positions == {"file": b"2"}


def test_what_an_unsynced_round_frees_is_kept() -> None:
    """What waits is needed until the batch that took its place is on disk."""
    disk = ModelDisk()
    journal = on(disk, JournalLimits(4096, 8 * 4096))
    before = waiting(40, body_bytes=5000)
    journal.append([_IDENTITY, before])
    settle(journal)
    assert segments(disk) == [1, 2]
    disk.during_sync = lambda: journal.append([batch(0, event=40)])
    journal.append([SourcePosition("file", b"1")])
    settle(journal)
    assert segments(disk) == [1, 2]
    left = on(disk.after_power_cut(lambda low, _: low))
    assert held(left) == {("cpu", 0): (before,)}


def test_a_segment_is_on_the_disk_to_its_end_before_the_next_begins() -> None:
    """What is appended while a full segment is synced is in it, too."""
    disk = ModelDisk()
    journal = on(disk)
    first, beside = batch(0, body_bytes=4500), batch(10)
    journal.append([_IDENTITY, first])
    disk.during_sync = lambda: journal.append([beside])
    journal.sync()
    assert segments(disk) == [1, 2]
    left = on(disk.after_power_cut(lambda low, _: low))
    assert held(left) == {("cpu", 0): (first, beside)}


@pytest.mark.promise("in-journal-full-kafka")
def test_the_limit_holds_and_marks_still_fit() -> None:
    """Batches are refused when the journal is full, marks never, and acks make room again."""
    disk = ModelDisk()
    journal = on(disk)
    sent = fill(journal)
    with pytest.raises(JournalFullError, match=r"holds \d+ of 16384 bytes"):
        journal.append([batch(10_000, body_bytes=7000)])
    assert not has_room(journal, 1000)
    journal.append([ack(*sent)])
    settle(journal)
    assert disk.used_bytes <= _SMALL.limit_bytes
    assert has_room(journal, 1000)
    journal.append([batch(30_000)])


def test_a_full_journal_opens_and_gives_room_back() -> None:
    disk = ModelDisk()
    sent = fill(on(disk))
    for _ in range(4):
        journal = on(disk.after_kill())
        assert disk.used_bytes <= _SMALL.limit_bytes
    assert held(journal) == {("cpu", 0): tuple(sent)}
    journal.append([ack(*sent)])
    settle(journal)
    assert has_room(journal, 1000)


def test_marks_that_find_no_room_go_out_with_the_next_round() -> None:
    """With a full disk an ack still frees what it acks, and is written as soon as there is room."""
    disk = ModelDisk()
    journal = on(disk, JournalLimits(4096, 64 * 4096))
    sent = [batch(base, body_bytes=700) for base in range(0, 100, 10)]
    for one in sent:
        journal.append([one])
        settle(journal)
    disk.capacity_bytes = disk.used_bytes
    journal.append([ack(*sent[:9])])
    assert journal.statistics().unacked_batches == 1
    with pytest.raises(JournalFullError, match="no space left"):
        journal.append([batch(100, body_bytes=10_000)])
    settle(journal)
    assert disk.used_bytes < disk.capacity_bytes
    journal.append([batch(100)])
    assert held(on(disk.after_kill())) == {("cpu", 0): (sent[9], batch(100))}


def test_a_full_disk_leaves_nothing_of_the_round() -> None:
    """A round written in part is taken back; later rounds stand behind good ones."""
    disk = ModelDisk()
    journal = on(disk)
    journal.append([batch(0)])
    used = disk.used_bytes
    disk.capacity_bytes = used + 50
    with pytest.raises(JournalFullError, match="no space left on the disk of model"):
        journal.append([batch(10)])
    assert disk.used_bytes == used
    disk.capacity_bytes = None
    journal.append([batch(10)])
    assert held(on(disk.after_kill())) == {("cpu", 0): (batch(0), batch(10))}


def test_after_a_failed_sync_nothing_is_promised() -> None:
    """The kernel may forget what it could not write, so a second sync proves nothing."""
    disk = ModelDisk()
    journal = on(disk)
    journal.append([batch(0)])
    disk.sync_fails = True
    with pytest.raises(JournalFailedError, match=r"could not sync in model: .*Input/output"):
        journal.sync()
    disk.sync_fails = False
    with pytest.raises(JournalFailedError):
        journal.sync()
    with pytest.raises(JournalFailedError):
        journal.reclaim()
    with pytest.raises(JournalFailedError):
        journal.append([batch(10)])
    journal.close()


def test_a_closed_journal_says_so() -> None:
    """Closing twice is harmless; using it is refused."""
    journal = on(ModelDisk())
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.append([batch(0)])


@pytest.mark.parametrize(
    "frames",
    [
        [batch(0), batch(0)],
        [Renewal(Identity(8, 0), (Restamp("cpu", 0, 7, 0, 50, 0, 10),))],
        [ack(batch(0)), Renewal(Identity(8, 0), (Restamp(*batch(0).key, 0, 10),))],
    ],
    ids=["twice", "unknown", "acked"],
)
def test_frames_that_contradict_the_journal_are_refused(frames: Sequence[Frame]) -> None:
    """A mistake of the sender is seen when it is made, not at the next start."""
    disk = ModelDisk()
    journal = on(disk)
    used = disk.used_bytes
    with pytest.raises(ValueError, match="in the journal"):
        journal.append(frames)
    assert disk.used_bytes == used


def test_a_renewal_renumbers_the_exact_bytes() -> None:
    """What is recovered is stamped as the broker will see it, though only the stamp was written."""
    disk = ModelDisk()
    journal = on(disk)
    sent = [batch(0), batch(10), batch(20)]
    journal.append([_IDENTITY, *sent])
    journal.append([ack(sent[0])])
    restamps = tuple(Restamp(*one.key, n * 10, 10) for n, one in enumerate(sent[1:]))
    journal.append([Renewal(Identity(9, 1), restamps)])
    journal.close()
    journal = on(disk)
    found, batches = journal.recovered, held(journal)["cpu", 0]
    assert found.identity == Identity(9, 1)
    stamps = [Stamp.of(one.data) for one in batches]
    assert stamps == [Stamp(9, 1, 0), Stamp(9, 1, 10)]
    expected = [record_batch(stamp, b"x" * 100) for stamp in stamps]
    assert expected == [one.data for one in batches]
    assert found.partitions["cpu", 0] == PartitionState("cpu", 0, 9, 1, 20, 29)


def test_the_halves_of_a_split_batch_are_sent_before_what_follows() -> None:
    """A refused batch, its halves and the renumbered rest: recovered in the order of acceptance."""
    disk = ModelDisk()
    journal = on(disk)
    large, later = batch(0), batch(10)
    journal.append([_IDENTITY, large, later])
    halves = [
        BatchFrame(
            "cpu",
            0,
            8,
            0,
            5 * n,
            5,
            5 * n,
            5 * n + 4,
            data=record_batch(Stamp(8, 0, 5 * n), b""),
        )
        for n in range(2)
    ]
    refused = Acks((Ack(*large.key, reason="MESSAGE_TOO_LARGE"),))
    renewal = Renewal(Identity(8, 0), (Restamp(*later.key, 10, 10),))
    journal.append([refused, renewal, *halves])
    journal.close()
    found = on(disk).recovered
    assert [
        (one.first_event_sequence, one.last_event_sequence) for one in found.unacked["cpu", 0]
    ] == [(0, 4), (5, 9), (10, 19)]
    assert found.partitions["cpu", 0] == PartitionState("cpu", 0, 8, 0, 20, 19)


def test_numbering_wraps_with_the_sequence() -> None:
    disk = ModelDisk()
    journal = on(disk)
    journal.append([_IDENTITY, batch(2**31 - 20, event=0)])
    journal.append([batch(2**31 - 10, event=10)])
    journal.append([batch(0, event=20)])
    journal.close()
    found = on(disk).recovered
    assert found.partitions["cpu", 0].next_sequence == 10
    assert [one.first_event_sequence for one in found.unacked["cpu", 0]] == [0, 10, 20]


def test_what_waits_is_numbered_without_its_bytes() -> None:
    """The exact bytes follow from the waiting batch, the numbers and the timestamp."""
    disk = ModelDisk()
    journal = on(disk)
    early, late = waiting(0, body_bytes=900), waiting(10, body_bytes=900)
    journal.append([_IDENTITY, early, late])
    used = disk.used_bytes
    journal.append([Numbered((number(early, 0, 1_000), number(late, 10)))])
    assert disk.used_bytes - used < 200
    journal.close()
    journal = on(disk)
    first, second = held(journal)["cpu", 0]
    assert first.data == stamped(early.data, Stamp(7, 0, 0), 1_000)
    assert second.data == stamped(late.data, Stamp(7, 0, 10))
    assert journal.recovered.partitions["cpu", 0].next_sequence == 20


@pytest.mark.promise("in-batch-given-found")
def test_a_batch_is_found_by_its_first_event_under_whatever_numbers_it_has() -> None:
    """Whoever reads it need not know whether its numbers are in the journal already."""
    journal = Journal.open_on(ModelDisk(), producer="p")
    later, first = waiting(0), WaitingKey("cpu", 0, 0)
    journal.append([_IDENTITY, later])
    assert journal.read(first) == later.data
    journal.append([Numbered((number(later, 0),))])
    assert journal.read(first) == stamped(later.data, Stamp(7, 0, 0))
    journal.append([Renewal(Identity(8, 0), (Restamp("cpu", 0, 7, 0, 0, 0, 10),))])
    assert journal.read(first) == stamped(later.data, Stamp(8, 0, 0))
    journal.append([Acks((Ack("cpu", 0, 8, 0, 0),))])
    with pytest.raises(KeyError):
        journal.read(first)


def test_a_batch_that_grows_is_recovered_as_one() -> None:
    """Pieces are put together; a whole batch takes their place."""
    disk = ModelDisk()
    journal = on(disk)
    for count in (1, 2, 3):
        piece = Waiting("cpu", 0, 5, 4 + count, count, 7, 7 + count, piece=True, data=b"%d" % count)
        journal.append([piece])
    (grown,) = held(on(disk.after_kill()))["cpu", 0]
    assert grown.data == batch_of(b"123", 3, first_ms=7, last_ms=10)
    assert (grown.first_event_sequence, grown.last_event_sequence) == (5, 7)
    journal = on(disk.after_kill())
    whole = msgspec.structs.replace(waiting(5), first_event_sequence=5)
    journal.append([whole])
    assert held(on(disk.after_kill())) == {("cpu", 0): (whole,)}


@pytest.mark.promise("in-events-call-journal")
def test_a_batch_that_the_journal_holds_in_part_gets_no_numbers() -> None:
    """What follows of it would be held, and sent, as another batch."""
    disk = ModelDisk()
    journal = on(disk)
    journal.append([msgspec.structs.replace(waiting(5), record_count=3, piece=True)])
    used = disk.used_bytes
    with pytest.raises(ValueError, match="in the journal with 3 records, not 10"):
        journal.append([Numbered((number(waiting(5), 0),))])
    assert disk.used_bytes == used
    journal.append([waiting(5)])
    journal.append([Numbered((number(waiting(5), 0),))])


def test_what_waits_is_given_up_by_its_name() -> None:
    """A dropped batch is not brought back, and the others are."""
    disk = ModelDisk()
    journal = on(disk)
    journal.append([waiting(0), waiting(10)])
    journal.append([Drop((waiting(0).key,), "delivery timeout")])
    assert held(on(disk.after_kill())) == {("cpu", 0): (waiting(10),)}


@pytest.mark.promise("in-events-call-journal")
def test_parts_of_a_round_count_from_its_end_on() -> None:
    """A kill between two parts leaves nothing of the round; a later round does not revive it."""
    disk = ModelDisk()
    journal = on(disk)
    journal.append([waiting(0)], part=True)
    journal = on(disk.after_kill())
    assert held(journal) == {}
    journal.append([waiting(10, body_bytes=200)], part=True)
    journal.append([Commit(), SourcePosition("file", b"1")])
    journal = on(disk.after_kill())
    assert held(journal) == {("cpu", 0): (waiting(10, body_bytes=200),)}
    assert journal.recovered.positions == {"file": b"1"}


@pytest.mark.promise("in-journal-disk-smaller")
def test_old_segments_are_copied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still needed of old segments is copied a piece at a time, never all at once."""
    monkeypatch.setattr("sequitur.producer.journal.journal._COPY_BYTES", 1000)
    disk = ModelDisk()
    journal = on(disk, JournalLimits(4096, 16 * 4096))
    kept = [waiting(1000 * n, partition=1, body_bytes=400) for n in range(20)]
    for base, slow in enumerate(kept):
        journal.append([slow])
        sent = [batch(base * 20 + n, body_bytes=700, event=1000 * base + 20 + n) for n in (0, 10)]
        journal.append(sent)
        settle(journal)
        journal.append([ack(*sent)])
    longest = 0
    append = ModelFile.append

    def recorded(self: ModelFile, buffers: Sequence[bytes]) -> None:
        nonlocal longest
        longest = max(longest, sum(map(len, buffers)))
        append(self, buffers)

    monkeypatch.setattr(ModelFile, "append", recorded)
    for base in range(1000, 1400, 20):
        sent = [batch(base + n, body_bytes=700, event=100_000 + base + n) for n in (0, 10)]
        journal.append(sent)
        settle(journal)
        journal.append([ack(*sent)])
    assert segments(disk)[0] > 5
    assert longest < 3_000
    assert held(on(disk.after_kill())) == {("cpu", 1): tuple(kept)}


@pytest.mark.promise("in-journal-disk-smaller")
@pytest.mark.parametrize("is_quota", [False, True])
def test_a_small_disk_is_a_small_limit(is_quota: bool) -> None:
    """A disk smaller than the limit fills, and gives room back as soon as all is acknowledged."""
    disk = ModelDisk()
    disk.capacity_bytes, disk.is_quota = 64 << 10, is_quota
    journal = on(disk, JournalLimits.within(1 << 30))
    for life in range(3):
        sent: list[BatchFrame] = []
        with contextlib.suppress(JournalFullError):
            while True:
                base = life * 10_000 + len(sent) * 10
                journal.append([batch(base, body_bytes=2000)])
                sent.append(batch(base, body_bytes=2000))
                settle(journal)
        assert disk.used_bytes > 40 << 10
        journal.append([ack(*sent)])
        settle(journal)
        settle(journal)
        assert disk.used_bytes < 24 << 10


@pytest.mark.promise("in-journal-disk-smaller")
def test_room_that_others_give_back_is_noticed() -> None:
    """A disk that others have filled takes rounds as soon as they give room back."""
    disk = ModelDisk()
    journal = on(disk)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(JournalFullError):
        journal.append([batch(0)])
    disk.capacity_bytes = None
    journal.append([batch(0)])
    assert held(on(disk.after_kill())) == {("cpu", 0): (batch(0),)}


def test_sizes_that_do_not_fit_are_refused() -> None:
    """The error names the setting, its value and what was expected."""
    with pytest.raises(ValueError, match="limit_bytes is 8192, expected at least 4 times"):
        JournalLimits(4096, 8192)
    with pytest.raises(ValueError, match="segment_bytes is 10, expected 4096 to"):
        JournalLimits(10, 8192)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take less than it was given; the rest follows."""
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: whole(fd, [buffers[0][:3]]))
    file = RealDisk(tmp_path).open("f")
    file.append([b"hello ", b"world"])
    file.close()
    assert (tmp_path / "f").read_bytes() == b"hello world"


def test_a_real_full_disk_is_a_full_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC from the kernel blocks the sender instead of ending it."""
    journal = Journal.open(tmp_path, producer="p")

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", no_space)
        with pytest.raises(JournalFullError, match="No space left on device"):
            journal.append([batch(0)])
    journal.append([batch(0)])
    journal.close()


@pytest.mark.promise("in-processes-take-journal")
def test_a_folder_that_cannot_be_taken_for_lack_of_space_is_taken_later(tmp_path: Path) -> None:
    """By the same process: it holds no lock that it has not told anyone of."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            RealDisk(tmp_path).lock()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    disk = RealDisk(tmp_path)
    disk.lock()
    disk.unlock()


@pytest.mark.promise("in-further-file-opened")
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_a_segment_that_cannot_be_opened_now_is_begun_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Too many open files, or no room for another name: the current one is written on."""
    journal = Journal.open(tmp_path, producer="p", limits=JournalLimits(4096, 1 << 20))

    def fail(_disk: RealDisk, name: str) -> DiskFile:
        raise OSError(code, "not now", name)

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "open", fail)
        for base in range(0, 100, 10):
            journal.append([batch(base, body_bytes=1_000)])
            journal.sync()
    segments = journal.statistics().segments
    journal.sync()
    assert journal.statistics().segments == segments + 1
    journal.close()
    with Journal.open(tmp_path, producer="p") as again:
        assert sum(map(len, again.recovered.unacked.values())) == 10


@pytest.mark.promise("in-files-open-batches")
def test_a_segment_that_cannot_be_opened_now_is_copied_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal goes on meanwhile, and can be read back afterwards."""
    journal = Journal.open(tmp_path, producer="p", limits=JournalLimits(4096, 1 << 20))
    journal.append([batch(0)])
    for base in range(10, 200, 10):
        journal.append([batch(base, body_bytes=1_000)])
        journal.sync()
    journal.append([ack(*(batch(base) for base in range(10, 200, 10)))])

    def fail(_disk: RealDisk, name: str, _offset: int, _length: int) -> bytes:
        raise OSError(errno.EMFILE, "too many", name)

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "read_part", fail)
        assert journal.sync()
        journal.reclaim()
        with pytest.raises(JournalBusyError, match="too many"):
            journal.read(batch(0).key)
    segments = journal.statistics().segments
    assert journal.sync()
    journal.reclaim()
    assert journal.statistics().segments < segments
    assert journal.read(batch(0).key) == batch(0).data
    journal.close()

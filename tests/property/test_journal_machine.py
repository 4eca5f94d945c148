"""Whatever is done to a journal and wherever the machine stops: what was synced is there."""

from __future__ import annotations

import contextlib
from random import Random
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from producer._batch import Stamp
from producer._journal import Journal
from producer._journal_codec import (
    Ack,
    Acks,
    Batch,
    Drop,
    Frame,
    Identity,
    PartitionState,
    Position,
    Renewal,
    Restamp,
    Spool,
    SpooledEvent,
)
from producer._journal_errors import JournalFullError
from producer._journal_limits import JournalLimits
from tests.property.journal_model import JournalModel, ModelDisk, PowerCut, record_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_LIMITS = JournalLimits(segment_bytes=4096, limit_bytes=4 * 4096)
_PARTITIONS = [("cpu", 0), ("cpu", 1), ("disk", 0)]

body_lengths = st.one_of(st.integers(0, 40), st.integers(300, 1500))
partitions = st.sampled_from(_PARTITIONS)
positions = st.one_of(st.none(), st.integers(0, 10**6))


class JournalMachine(RuleBasedStateMachine):
    """Drives a journal on a disk that crashes, beside a list of the rounds it was given.

    The one property: what is recovered is the meaning of the first n rounds, byte for byte, with n
    at least the rounds that were synced. `log` holds the rounds, `durable` counts the synced ones.
    Marks that found no room are `owed`: each of them may be lost, and only they.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = ModelDisk()
        self.log: list[list[Frame]] = []
        self.owed: list[Frame] = []
        self.durable = 0
        self.random = Random(0)
        self.journal = Journal.open_on(self.disk, producer="p", limits=_LIMITS)
        self.recovered_ok()
        self.append([Renewal(Identity(7, 0))])

    @property
    def model(self) -> JournalModel:
        """What the journal must mean now."""
        return JournalModel.of([*self.log, self.owed])

    @property
    def identity(self) -> Identity:
        """The current identity; a crash may have taken the first one."""
        while (identity := self.model.identity) is None:
            self.append([Renewal(Identity(7, 0))])
            if self.model.identity is None:  # too full even for that: the heads of many restarts
                self.drop(1)
                self.sync()
        return identity

    # What a producer does

    @rule(
        chosen=st.lists(
            st.tuples(partitions, body_lengths, st.integers(1, 9)), min_size=1, max_size=4
        ),
        position=positions,
        filler=st.sampled_from([b"\0", b"\xabSQF", b"x", None]),
    )
    def send(
        self,
        chosen: list[tuple[tuple[str, int], int, int]],
        position: int | None,
        filler: bytes | None,
    ) -> None:
        """A round of batches; some hold zeros, the frames' magic or copies of older frames."""
        identity = self.identity
        model = self.model
        frames: list[Frame] = []
        next_event = model.next_event_sequence
        for (topic, partition), length, count in chosen:
            waiting = [e for e in model.spool if (e.topic, e.partition) == (topic, partition)]
            first, last = next_event, next_event + count - 1
            if waiting:
                first, last = waiting[0].event_sequence, waiting[-1].event_sequence
            next_event = max(next_event, last + 1)
            base = model.next_sequence(topic, partition)
            body = self.body(filler, length)
            batch = Batch(
                topic=topic,
                partition=partition,
                producer_id=identity.producer_id,
                epoch=identity.epoch,
                base_sequence=base,
                record_count=count,
                first_event_sequence=first,
                last_event_sequence=last,
                data=record_batch(Stamp(identity.producer_id, identity.epoch, base), body),
            )
            frames.append(batch)
            model.take(batch)
        if position is not None:
            assert isinstance(frames[-1], Batch)
            place = Position("file", b"%d" % position)
            frames[-1] = msgspec.structs.replace(frames[-1], position=place)
        self.append(frames)

    @rule(events=st.lists(st.tuples(partitions, st.binary(max_size=60)), min_size=1, max_size=12))
    def spool(self, events: list[tuple[tuple[str, int], bytes]]) -> None:
        """Events are accepted before they are in a batch."""
        first = self.model.next_event_sequence
        spooled = tuple(
            SpooledEvent(first + i, topic, partition, payload)
            for i, ((topic, partition), payload) in enumerate(events)
        )
        self.append([Spool(spooled, Position("stdin", b"%d" % spooled[-1].event_sequence))])

    @rule(every=st.integers(1, 4))
    def drop(self, every: int) -> None:
        """Some spooled events are given up."""
        if gone := tuple(event.event_sequence for event in self.model.spool[::every]):
            self.append([Drop(gone, "too old")])

    @rule(indices=st.sets(st.integers(0, 12), min_size=1))
    def ack(self, indices: set[int]) -> None:
        """Answers arrive for some batches, in any order."""
        batches = self.model.batches
        acked = [batches[index] for index in sorted(indices) if index < len(batches)]
        self.append([Acks(tuple(Ack(*batch.key, offset=1) for batch in acked))])

    @rule()
    def ack_all(self) -> None:
        """All answers arrive."""
        marks = tuple(Ack(*batch.key, offset=1) for batch in self.model.batches)
        self.append([Acks(marks)])

    @rule(bump=st.booleans())
    def renew(self, bump: bool) -> None:
        """A new identity; what is un-acked is numbered anew in order."""
        old = self.identity
        new = Identity(old.producer_id, old.epoch + 1)
        if not bump:
            new = Identity(old.producer_id + 1, 0)
        restamps = []
        for batches in self.model.unacked().values():
            base = 0
            for batch in batches:
                restamps.append(Restamp(*batch.key, base, batch.record_count))
                base += batch.record_count
        self.append([Renewal(new, tuple(restamps))])

    @rule()
    def sync(self) -> None:
        """The disk is waited for."""
        with self.until_crash():
            settles = self.journal.sync()
            self.durable = len(self.log)
            if settles:
                self.journal.reclaim()

    @rule(acks=st.integers(0, 5), events=st.integers(0, 5))
    def append_during_sync(self, acks: int, events: int) -> None:
        """While the disk is waited for, the event loop appends marks and then more."""
        before = len(self.log)

        def append() -> None:
            if self.journal._state_lock.locked():  # a segment is begun: the event loop waits
                return
            marks = tuple(Ack(*batch.key) for batch in self.model.batches[:acks])
            first = self.model.next_event_sequence
            spooled = tuple(SpooledEvent(first + i, "cpu", 0, b"e") for i in range(events))
            self.give([Acks(marks), Spool(spooled)])

        with self.until_crash():
            self.disk.during_sync = append
            self.journal.sync()
            self.durable = before
        self.disk.during_sync = None

    @rule()
    def close_and_open(self) -> None:
        """A clean restart loses nothing."""
        with self.until_crash():
            self.journal.close()
            self.durable = len(self.log)
            self.journal = Journal.open_on(self.disk, producer="p", limits=_LIMITS)
            self.recovered_ok()

    # What happens to it

    @rule(steps=st.integers(0, 6), seed=st.integers(0, 2**32))
    def arm(self, steps: int, seed: int) -> None:
        """The power will be cut some steps from now."""
        self.disk.steps_left = steps
        self.random = Random(seed)

    @precondition(lambda self: self.disk.steps_left is None)
    @rule(data=st.data())
    def cut_power(self, data: st.DataObject) -> None:
        """The power is cut between two calls."""
        self.crash(lambda low, high: data.draw(st.integers(low, high)))

    @rule()
    def kill(self) -> None:
        """The process is killed between two calls: the page cache stays."""
        self.durable = len(self.log)
        self.reopen(self.disk.after_kill())

    @invariant()
    def within_limit(self) -> None:
        """The files never grow beyond the limit."""
        assert self.disk.used_bytes <= _LIMITS.limit_bytes

    @invariant()
    def counts_agree(self) -> None:
        """The running journal counts what the model counts."""
        statistics = self.journal.statistics()
        assert statistics.unacked_batches == len(self.model.batches)
        assert statistics.spooled_events == len(self.model.spool)

    def body(self, filler: bytes | None, length: int) -> bytes:
        """Bytes of a batch; without a filler, what the newest segment begins with."""
        if filler is None:
            filler = self.disk.files[max(self.disk.files)].content[24:] or b"x"
        return (filler * (length // len(filler) + 1))[:length]

    def append(self, frames: Sequence[Frame]) -> None:
        """Gives the journal a round; recovers when the power is cut in it."""
        with self.until_crash():
            self.give(frames)

    def give(self, frames: Sequence[Frame]) -> None:
        """Gives the journal a round, unless it is full."""
        entry, owed = [*self.owed, *frames], self.owed
        self.log.append(entry)
        self.owed = []
        try:
            self.journal.append(frames)
        except JournalFullError:
            assert self.disk.used_bytes > _LIMITS.limit_bytes // 4
            self.log.pop()
            self.owed = owed
        if self.journal._owed:
            self.owed = self.log.pop() if self.journal._owed == entry else owed

    @contextlib.contextmanager
    def until_crash(self) -> Iterator[None]:
        """Runs the body; recovers when the power is cut in it."""
        try:
            yield
        except PowerCut:
            self.crash(self.random.randint)

    def crash(self, choose: Callable[[int, int], int]) -> None:
        """The power is cut, the machine comes back, the journal is opened."""
        self.reopen(self.disk.after_power_cut(choose))

    def reopen(self, disk: ModelDisk) -> None:
        """Opens what is left and holds it against the log."""
        self.disk = disk
        self.journal = Journal.open_on(disk, producer="p", limits=_LIMITS)
        self.recovered_ok()

    def recovered_ok(self) -> None:
        """What was recovered is the meaning of a prefix of the log with all synced rounds."""
        found = self.journal.recovered
        owed, self.owed = self.owed, []
        got = (
            found.identity,
            _without_positions(found.unacked),
            list(found.spool),
            dict(found.positions),
            found.next_event_sequence,
            {name: state_numbers(state) for name, state in found.partitions.items()},
        )
        for count in range(len(self.log), self.durable - 1, -1):
            log = [*self.log[:count], self.kept_marks(JournalModel.of(self.log[:count]), owed)]
            model = JournalModel.of(log)
            expected = (
                model.identity,
                _without_positions(model.unacked()),
                sorted(model.spool, key=lambda event: event.event_sequence),
                model.positions,
                model.next_event_sequence,
                model.numbering,
            )
            if expected == got:
                self.log = log
                self.durable = len(log)
                return
        raise AssertionError(f"no prefix of {len(self.log)} rounds, {self.durable} synced: {got}")

    def kept_marks(self, model: JournalModel, owed: Sequence[Frame]) -> list[Frame]:
        """The owed marks that took effect: what they name went with a segment."""
        found = self.journal.recovered
        batches = {batch.key for unacked in found.unacked.values() for batch in unacked}
        events = {event.event_sequence for event in found.spool}
        marks = [mark for frame in owed if isinstance(frame, Acks) for mark in frame.marks]
        drops = [n for frame in owed if isinstance(frame, Drop) for n in frame.event_sequences]
        held = {batch.key for batch in model.batches} - batches
        return [
            Acks(tuple(mark for mark in marks if mark.key in held)),
            Drop(tuple(n for n in drops if n not in events), "owed"),
        ]


def state_numbers(state: PartitionState) -> tuple[int, int, int, int]:
    """A partition's numbering as the model keeps it."""
    return (
        state.producer_id,
        state.epoch,
        state.next_sequence,
        state.through_event_sequence,
    )


def _without_positions(
    unacked: Mapping[tuple[str, int], tuple[Batch, ...]],
) -> dict[tuple[str, int], list[Batch]]:
    return {
        partition: [msgspec.structs.replace(batch, position=None) for batch in batches]
        for partition, batches in unacked.items()
    }


@given(
    lengths=st.lists(st.integers(0, 1500), min_size=2, max_size=6),
    synced=st.integers(0, 6),
    data=st.data(),
)
def test_holes_of_a_power_cut_are_no_damage(
    lengths: list[int], synced: int, data: st.DataObject
) -> None:
    """Later pages of unsynced rounds may be there without earlier ones: cut, not refused."""
    disk = ModelDisk()
    journal = Journal.open_on(disk, producer="p")
    rounds: list[list[Frame]] = [[Position("file", b"x" * length)] for length in lengths]
    for index, frames in enumerate(rounds):
        if index == synced:
            journal.sync()
        journal.append(frames)
    left = disk.after_power_cut(lambda low, high: data.draw(st.integers(low, high)))
    found = Journal.open_on(left, producer="p").recovered
    allowed = [JournalModel.of(rounds[:count]).positions for count in range(len(rounds) + 1)]
    assert dict(found.positions) in allowed[synced if synced < len(rounds) else 0 :]


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)

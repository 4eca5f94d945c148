"""Whatever is done to a journal and wherever the machine stops: what was synced is there."""

from __future__ import annotations

import contextlib
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sequitur.errors import JournalFullError
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_batch import NO_STAMP, Stamp
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
)
from sequitur.producer.journal.journal import Journal
from sequitur.producer.journal.segments import JournalLimits
from tests.property.journal_model import JournalModel, ModelDisk, PowerCut, Round, record_batch
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_LIMITS = JournalLimits(segment_bytes=4096, limit_bytes=4 * 4096)
_PARTITIONS = [("cpu", 0), ("cpu", 1), ("disk", 0)]

body_lengths = st.one_of(st.integers(0, 40), st.integers(300, 1500))
partitions = st.sampled_from(_PARTITIONS)
positions = st.one_of(st.none(), st.integers(0, 10**6))


class JournalMachine(RuleBasedStateMachine):
    """Drives a journal on a disk that crashes, beside a list of the rounds it was given.

    The one property: what is recovered is the meaning of the first n rounds, byte for byte, with n
    at least the rounds that were synced. `log` holds the rounds, `durable` counts the synced ones.
    The parts of a round that was not ended mean nothing after a restart.
    Marks that found no room are `owed`: each of them may be lost, and only they.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = ModelDisk()
        self.log: list[Round] = []
        self.owed: list[Frame] = []
        self.durable = 0
        self.lives = 0
        self.random = Random(0)
        self.journal = Journal.open_on(self.disk, producer="p", limits=_LIMITS)
        self.recovered_ok()
        self.append([Renewal(Identity(7, 0))])

    @property
    def model(self) -> JournalModel:
        """What the journal must mean now."""
        return JournalModel.of([*self.log, (self.owed, False)])

    @property
    def identity(self) -> Identity:
        """The current identity; a crash may have taken the first one."""
        while (identity := self.model.identity) is None:
            self.append([Renewal(Identity(7, 0))])
            if self.model.identity is None:  # too full even for that: the heads of many restarts
                self.drop(1)
                self.sync()
                self.journal.reclaim()
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
            waiting = [w for w in model.waiting.values() if w.key[:2] == (topic, partition)]
            first, last = next_event, next_event + count - 1
            if len(waiting) > 1:  # nothing overtakes what waits
                continue
            if waiting:  # what waited is numbered at once
                first, last = waiting[0].first_event_sequence, waiting[0].last_event_sequence
            next_event = max(next_event, last + 1)
            base = model.next_sequence(topic, partition)
            body = self.body(filler, length)
            batch = BatchFrame(
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
        if position is not None and frames:
            assert isinstance(frames[-1], BatchFrame)
            place = SourcePosition("file", b"%d" % position)
            frames[-1] = msgspec.structs.replace(frames[-1], position=place)
        self.append(frames)

    @rule(
        chosen=st.lists(
            st.tuples(partitions, body_lengths, st.integers(1, 9)), min_size=1, max_size=4
        ),
        piece=st.booleans(),
    )
    def wait(self, chosen: list[tuple[tuple[str, int], int, int]], piece: bool) -> None:
        """Events are accepted before they have numbers: a whole batch, or some more of one."""
        self.append([*self.waiting(chosen, piece=piece), SourcePosition("stdin", b"1")])

    @rule(
        parts=st.lists(
            st.lists(
                st.tuples(partitions, body_lengths, st.integers(1, 9)), min_size=1, max_size=3
            ),
            min_size=1,
            max_size=3,
        ),
        piece=st.booleans(),
        ended=st.integers(0, 2),
    )
    def wait_in_parts(
        self,
        parts: list[list[tuple[tuple[str, int], int, int]]],
        piece: bool,
        ended: int,
    ) -> None:
        """Events whose round is too long for one append; they count once its end is there."""
        if self.model.parted:
            self.append([Commit(whole=False)])
        if self.model.parted:  # no room even for that
            return
        first = self.model.next_event_sequence
        lives = self.lives
        for part in parts:
            frames = self.waiting(part, piece=piece, first=first)
            first = max((frame.last_event_sequence + 1 for frame in frames), default=first)
            self.append(frames, part=True)
            if self.lives != lives:
                return
        if ended:
            self.append([Commit(), SourcePosition("stdin", b"%d" % first)])

    def waiting(
        self,
        chosen: list[tuple[tuple[str, int], int, int]],
        *,
        piece: bool,
        first: int | None = None,
    ) -> list[Waiting]:
        """Frames of events without numbers; pieces go on with the newest batch, if they can."""
        model = self.model
        next_event = model.next_event_sequence if first is None else first
        frames: list[Waiting] = []
        for (topic, partition), length, count in chosen:
            names = (w for w in model.waiting.values() if w.key[:2] == (topic, partition))
            newest = max(names, key=lambda w: w.first_event_sequence, default=None)
            body = self.body(b"w", length)
            start, total = next_event, count
            if newest is not None and piece and first is None:
                start, total = newest.first_event_sequence, newest.record_count + count
            next_event += count
            first_ms, last_ms = 5, 5 + next_event
            if newest is not None and start == newest.first_event_sequence:
                first_ms = newest.first_ms
            data = body if piece else record_batch(NO_STAMP, body, first_ms, last_ms)
            frame = Waiting(
                topic,
                partition,
                start,
                next_event - 1,
                total,
                first_ms,
                last_ms,
                False,
                piece,
                data,
            )
            frames.append(frame)
            if first is None:
                model.take(frame)
        return frames

    @rule(count=st.integers(1, 4), dated=st.booleans())
    def number(self, count: int, dated: bool) -> None:
        """What has waited longest is about to be sent."""
        identity, model = self.identity, self.model
        numbers: list[Number] = []
        for waiting in sorted(model.waiting.values(), key=lambda w: w.first_event_sequence)[:count]:
            number = Number(
                waiting.topic,
                waiting.partition,
                waiting.first_event_sequence,
                waiting.last_event_sequence,
                waiting.record_count,
                identity.producer_id,
                identity.epoch,
                model.next_sequence(waiting.topic, waiting.partition),
                -1 if dated else 10**6 + len(numbers),
            )
            numbers.append(number)
            model.take(Numbered((number,)))
        if numbers:
            self.append([Numbered(tuple(numbers))])

    @rule(indices=st.sets(st.integers(0, 6), min_size=1), time_ms=st.integers(0, 10**6))
    def redate(self, indices: set[int], time_ms: int) -> None:
        """Batches with numbers keep them, and get another timestamp."""
        batches = self.model.batches
        numbers = [
            Number(
                *(batch.topic, batch.partition),
                *(batch.first_event_sequence, batch.last_event_sequence, batch.record_count),
                *(batch.producer_id, batch.epoch, batch.base_sequence, time_ms),
            )
            for batch in (batches[index] for index in sorted(indices) if index < len(batches))
        ]
        if numbers:
            self.append([Numbered(tuple(numbers))])

    @rule(every=st.integers(1, 4))
    def drop(self, every: int) -> None:
        """Some waiting batches are given up."""
        if gone := tuple(list(self.model.waiting)[::every]):
            self.append([Drop(gone, "too old")])

    @rule(indices=st.sets(st.integers(0, 12), min_size=1))
    def ack(self, indices: set[int]) -> None:
        """Answers arrive for some batches, in any order."""
        batches = self.model.batches
        acked = [batches[index] for index in sorted(indices) if index < len(batches)]
        self.append([Acks(tuple(Ack(*batch.key, offset=1) for batch in acked))])

    @rule()
    def ack_all(self) -> None:
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
            first, data = self.model.next_event_sequence, record_batch(NO_STAMP, b"e")
            waiting = [
                Waiting("cpu", 0, first + i, first + i, 1, 0, 0, False, False, data)
                for i in range(events)
            ]
            self.give([Acks(marks), *waiting])

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
        statistics = self.journal.statistics()
        assert statistics.unacked_batches == len(self.model.batches)
        assert statistics.waiting_batches == len(self.model.waiting)

    def body(self, filler: bytes | None, length: int) -> bytes:
        """Bytes of a batch; without a filler, what the newest segment begins with."""
        if filler is None:
            filler = self.disk.files[max(self.disk.files)].content[24:] or b"x"
        return (filler * (length // len(filler) + 1))[:length]

    def append(self, frames: Sequence[Frame], *, part: bool = False) -> None:
        """Gives the journal a round; recovers when the power is cut in it."""
        with self.until_crash():
            self.give(frames, part=part)

    def give(self, frames: Sequence[Frame], *, part: bool = False) -> None:
        """Gives the journal a round, unless it is full."""
        if part:
            owed, self.owed = self.owed, []
            self.log += [(owed, False), (frames, True)]
            try:
                self.journal.append(frames, part=True)
            except JournalFullError:
                self.log.pop()
                if self.journal._owed:
                    self.log.pop()
                    self.owed = owed
            return
        entry, owed = [*self.owed, *frames], self.owed
        self.log.append((entry, False))
        self.owed = []
        try:
            self.journal.append(frames)
        except JournalFullError:
            assert self.disk.used_bytes > _LIMITS.limit_bytes // 4
            self.log.pop()
            self.owed = owed
        if self.journal._owed:
            if self.journal._owed == entry:
                self.log.pop()
                self.owed = entry
            else:
                self.owed = owed

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
        self.lives += 1
        owed = self.owed
        got = (
            found.identity,
            {name: [self.whole(b) for b in batches] for name, batches in found.unacked.items()},
            {name: [self.whole(w) for w in waiting] for name, waiting in found.waiting.items()},
            dict(found.positions),
            found.next_event_sequence,
            {name: state_numbers(state) for name, state in found.partitions.items()},
        )
        for count in range(len(self.log), self.durable - 1, -1):
            marks = self.kept_marks(JournalModel.of(self.log[:count]), owed)
            log = [*self.log[:count], (marks, False)]
            model = JournalModel.of(log)
            expected = (
                model.identity,
                _without_positions(model.unacked()),
                _by_partition(model.waiting.values()),
                model.positions,
                model.next_event_sequence,
                model.numbering,
            )
            if expected == got:
                self.log = log
                self.durable = len(log)
                self.owed = list(self.journal._owed)
                return
        wrong = [which for which in range(len(got)) if got[which] != expected[which]]
        raise AssertionError(
            f"no prefix of {len(self.log)} rounds, {self.durable} synced; in the shortest "
            f"{wrong} differ: {str([(got[i], expected[i]) for i in wrong])[:2000]}"
        )

    def whole(self, batch: Any) -> Any:
        """A recovered batch with its bytes, which its first event finds, too."""
        data = self.journal.read(batch.key)
        first = WaitingKey(batch.topic, batch.partition, batch.first_event_sequence)
        assert self.journal.read(first) == data
        if isinstance(batch, Waiting):
            return msgspec.structs.replace(batch, piece=False, data=data)
        return msgspec.structs.replace(batch, data=data)

    def kept_marks(self, model: JournalModel, owed: Sequence[Frame]) -> list[Frame]:
        """The owed marks that took effect: what they name went with a segment."""
        found = self.journal.recovered
        batches = {batch.key for unacked in found.unacked.values() for batch in unacked}
        waiting = {tuple(w.key) for batches in found.waiting.values() for w in batches}
        marks = [mark for frame in owed if isinstance(frame, Acks) for mark in frame.marks]
        drops = [name for frame in owed if isinstance(frame, Drop) for name in frame.waiting]
        held = {batch.key for batch in model.batches} - batches
        return [
            Acks(tuple(mark for mark in marks if mark.key in held)),
            Drop(tuple(name for name in drops if tuple(name) not in waiting), "owed"),
        ]


def state_numbers(state: PartitionState) -> tuple[int, int, int, int]:
    return (
        state.producer_id,
        state.epoch,
        state.next_sequence,
        state.through_event_sequence,
    )


def _without_positions(
    unacked: Mapping[tuple[str, int], tuple[BatchFrame, ...]],
) -> dict[tuple[str, int], list[BatchFrame]]:
    return {
        partition: [
            msgspec.structs.replace(
                batch,
                position=None,
            )
            for batch in batches
        ]
        for partition, batches in unacked.items()
    }


def _by_partition(waiting: Iterable[Waiting]) -> dict[tuple[str, int], list[Waiting]]:
    found: dict[tuple[str, int], list[Waiting]] = {}
    for batch in sorted(waiting, key=lambda w: w.first_event_sequence):
        found.setdefault((batch.topic, batch.partition), []).append(batch)
    return found


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
    rounds: list[list[Frame]] = [[SourcePosition("file", b"x" * length)] for length in lengths]
    for index, frames in enumerate(rounds):
        if index == synced:
            journal.sync()
        journal.append(frames)
    left = disk.after_power_cut(lambda low, high: data.draw(st.integers(low, high)))
    found = Journal.open_on(left, producer="p").recovered
    allowed = [
        JournalModel.of([(frames, False) for frames in rounds[:count]]).positions
        for count in range(len(rounds) + 1)
    ]
    assert dict(found.positions) in allowed[synced if synced < len(rounds) else 0 :]


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=examples(2), stateful_step_count=40)

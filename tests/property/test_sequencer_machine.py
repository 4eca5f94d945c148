"""The sequencer against a model broker behind a network that loses, delays and breaks things."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sequitur.kafka.error_codes import Answer, meaning_of
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_format import MAX_SEQUENCE
from sequitur.producer.delivery.sequencer import WINDOW, Sequencer, Slot, State, Verdict
from tests.property.model_broker import ModelBroker, Request
from tests.support.examples import examples

Records = tuple[int, ...]

# What Kafka's DelayedProduce may answer although the leader has appended the batch.
_AFTER_LOCAL_APPEND = [3, 6, 7, 20, 56]


@dataclass
class Exchange:
    """A request, and its answer once the broker has given it."""

    slot: Slot[Records]
    request: Request
    answer: Answer | None = None


class SequencerMachine(RuleBasedStateMachine):
    """Each accepted record is in the log at most once, in order, and as its verdict says."""

    @initialize(
        start=st.sampled_from([0, MAX_SEQUENCE - 3, MAX_SEQUENCE]),
        window=st.integers(1, 5),
        former=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), max_size=6),
        kept=st.integers(0, 6),
        forgotten=st.booleans(),
        delayed=st.integers(0, WINDOW),
        repeated=st.booleans(),
    )
    def begin(
        self,
        start: int,
        window: int,
        former: list[tuple[int, int]],
        kept: int,
        delayed: int,
        *,
        forgotten: bool,
        repeated: bool,
    ) -> None:
        """A producer whose first sequence may be just before the wrap; two lives were before it.

        The broker has some of what they sent, in their order, and may have forgotten them since.
        """
        self.broker = ModelBroker()
        self.sequencer: Sequencer[Records] = Sequencer(
            Identity(7, 2),
            next_sequence=0 if former else start,
            window=window,
        )
        self.wire: deque[Exchange] = deque()
        self.ghosts: deque[Request] = deque()
        requests: list[Request] = []
        self.next_record = 0
        self.persisted: set[int] = set()
        self.refused: set[int] = set()
        self.lost: set[int] = set()
        sequences = [0, 0]
        for place, (epoch, count) in enumerate(sorted(former)):
            records = tuple(range(self.next_record, self.next_record + count))
            self.next_record += count
            identity = Identity(7, epoch)
            self.sequencer.recover(records, count, sequences[epoch], identity)
            requests.append(Request(identity, sequences[epoch], records))
            if place < kept:
                self.broker.append(requests[-1])
            sequences[epoch] += count
        self._delay(requests, kept, delayed, repeated=repeated)
        if forgotten and not self.ghosts:
            self.broker.forget()

    def _delay(self, sent: list[Request], kept: int, count: int, *, repeated: bool) -> None:
        """A former life was killed while requests of its were on their way: they may arrive yet.

        Args:
            sent: All batches of former lives.
            kept: So many of them the broker has.
            count: So many more are on their way at most.
            repeated: Whether an earlier attempt of the last that it has is, too.
        """
        if repeated and 0 < kept <= len(sent):
            self.ghosts.append(sent[kept - 1])
        window = [request for request in sent[kept:] if request.identity == sent[kept].identity]
        confirmed = any(request.identity == window[0].identity for request in sent[:kept] if window)
        self.ghosts.extend(window[: count if confirmed else min(count, 1)])

    @property
    def has_room(self) -> bool:
        """Whether a new batch would be sent at once, and overtake nothing."""
        probed = copy.deepcopy(self.sequencer)
        return probed.admit((), 1) is probed.next_to_send()

    @rule(count=st.integers(1, 3))
    @precondition(lambda self: self.has_room)
    def send_new(self, count: int) -> None:
        records = tuple(range(self.next_record, self.next_record + count))
        self.next_record += count
        self.sequencer.admit(records, count)
        self.send_next()

    @rule()
    @precondition(lambda self: self.sequencer.next_to_send() is not None)
    def send_next(self) -> None:
        """A batch that failed goes out again."""
        slot = self.sequencer.next_to_send()
        assert slot is not None
        self.sequencer.sent(slot)
        request = Request(slot.identity, slot.base_sequence, slot.batch)
        self.wire.append(Exchange(slot, request))

    @rule(
        trouble=st.sampled_from(
            [
                *(None, None, None, Answer.RETRIABLE, Answer.FORBIDDEN, Answer.MISDATED),
                *(Answer.REFUSED, Answer.TOO_LARGE, Answer.UNKNOWN),
            ]
        )
    )
    @precondition(lambda self: any(e.answer is None for e in self.wire))
    def broker_answers(self, trouble: Answer | None) -> None:
        """The broker takes the oldest request, or fails to."""
        exchange = next(e for e in self.wire if e.answer is None)
        if trouble is Answer.TOO_LARGE:
            self.broker.bad.add(exchange.request.records)
        if trouble is None or exchange.request.records in self.broker.bad:
            exchange.answer, _ = self.broker.append(exchange.request)
            self.broker.replicate()
        else:
            exchange.answer = trouble
            if trouble is Answer.UNKNOWN:  # appended, and then not replicated in time
                self.broker.append(exchange.request)

    @rule(code=st.sampled_from(_AFTER_LOCAL_APPEND), kept=st.integers(0, 2))
    @precondition(lambda self: any(e.answer is None for e in self.wire))
    def leader_moves(self, code: int, kept: int) -> None:
        """After the local append another replica leads, with or without the batch."""
        exchange = next(e for e in self.wire if e.answer is None)
        self.broker.append(exchange.request)
        self.broker.move_leader(kept)
        exchange.answer = meaning_of(code).answer

    @rule()
    @precondition(lambda self: self.wire and self.wire[0].answer is not None)
    def take_answer(self) -> None:
        exchange = self.wire.popleft()
        assert exchange.answer is not None
        self._answer(exchange.slot, exchange.answer)

    @rule()
    @precondition(lambda self: self.wire)
    def connection_breaks(self) -> None:
        """Answers are lost; requests may still lie in the broker's socket."""
        broken, self.wire = self.wire, deque()
        for exchange in broken:
            if exchange.answer is None:
                self.ghosts.append(exchange.request)
        for exchange in broken:
            self._answer(exchange.slot, Answer.UNKNOWN)

    @rule()
    @precondition(lambda self: self.ghosts)
    def ghost_arrives(self) -> None:
        """The broker comes to a request whose connection is long gone."""
        self.broker.append(self.ghosts.popleft())

    @rule()
    def broker_restarts(self) -> None:
        """Sockets are gone, and all but the last batch forgotten."""
        if self.wire:
            self.connection_breaks()
        self.ghosts.clear()
        self.broker.restart()

    @rule()
    @precondition(lambda self: not self.wire and not self.ghosts)
    def broker_is_silent_for_long(self) -> None:
        """It forgets us, and keeps what it has; with or without a batch that it never answered."""
        self.sequencer.on_silence()
        self.broker.forget()

    @rule(ours=st.booleans())
    @precondition(lambda self: self.sequencer.query_due or self.sequencer.renewal_due)
    def recover(self, *, ours: bool = True) -> None:
        """What the sender's recovery does; identities of former lives may not be ours any more.

        They are ours as long as the cluster is the one that requests are still on their way to.
        """
        sequencer = self.sequencer
        if sequencer.query_due:
            ours |= sequencer.leading.epoch >= 2 or bool(self.ghosts)
            described = self.broker.describe(sequencer.leading) if ours else None
            if described is None and sequencer.unknown:
                self.broker.replicate()  # which a search waits for
                log = set(self.broker.log)
                found = [slot for slot in sequencer if slot.batch[0] in log]
                for slot in found:
                    self.persisted.update(slot.batch)
                sequencer.on_searched(found, numbers_hold=ours)
            else:
                for slot in sequencer.on_described(described):
                    self.persisted.update(slot.batch)
                if sequencer.unknown:
                    return  # another life's are next
            while sequencer.query_due:
                slot = next(slot for slot in sequencer if slot.possibly_appended)
                self._settle(slot, sequencer.drop(slot))
        if sequencer.renewal_due:
            bumped = sequencer.identity.bumped()
            assert bumped is not None
            if sequencer.needs_new_id:
                bumped = Identity(sequencer.identity.producer_id + 1, 0)
            sequencer.renew(bumped)

    @rule(place=st.integers(0, WINDOW - 1))
    @precondition(lambda self: self.sequencer.slots)
    def expires(self, place: int) -> None:
        """A batch took too long, and surely did not arrive."""
        slots = self.sequencer.slots
        slot = slots[place % len(slots)]
        if slot.state is State.READY and not slot.possibly_appended:
            self._settle(slot, self.sequencer.drop(slot))

    @invariant()
    def nothing_doubled_or_overtaken(self) -> None:
        """The log holds records in the order in which they were accepted, each once."""
        if hasattr(self, "broker"):
            assert all(a < b for a, b in zip(self.broker.log, self.broker.log[1:], strict=False))

    @invariant()
    def window_kept(self) -> None:
        """Never more than five batches wait for their answer."""
        if hasattr(self, "wire"):
            assert len(self.wire) <= WINDOW

    def teardown(self) -> None:
        """Once the network heals, every record gets its verdict, and the log agrees."""
        if not hasattr(self, "broker"):
            return
        while self.wire or not self.sequencer.is_empty or self.sequencer.renewal_due:
            if self.sequencer.query_due or self.sequencer.renewal_due:
                self.recover()
            elif self.sequencer.next_to_send() is not None:
                self.send_next()
            else:
                if self.wire[0].answer is None:
                    self.broker_answers(None)
                self.take_answer()
        while self.ghosts:
            self.ghost_arrives()
        self.nothing_doubled_or_overtaken()
        log = set(self.broker.log)
        assert self.persisted | self.refused | self.lost == set(range(self.next_record))
        assert self.persisted <= log
        assert not self.refused & log
        assert log <= self.persisted | self.lost

    def _answer(self, slot: Slot[Records], answer: Answer) -> None:
        verdict = self.sequencer.on_answer(slot, answer)
        if verdict is Verdict.SPLIT:
            if slot.count == 1:
                self._settle(slot, self.sequencer.drop(slot))
            else:
                middle = slot.count // 2
                halves = (slot.batch[:middle], slot.batch[middle:])
                self.sequencer.replace(slot, [(half, len(half)) for half in halves])
        else:
            self._settle(slot, verdict)

    def _settle(self, slot: Slot[Records], verdict: Verdict) -> None:
        settled = {
            Verdict.PERSISTED: self.persisted,
            Verdict.REFUSED: self.refused,
            Verdict.LOST: self.lost,
        }
        if verdict in settled:
            settled[verdict].update(slot.batch)


SequencerMachine.TestCase.settings = settings(max_examples=examples(3), stateful_step_count=40)
TestSequencer = pytest.mark.promise("in-request-producer-killed")(SequencerMachine.TestCase)

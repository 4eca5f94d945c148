"""What is handed out, against a plain list of messages: nothing lost, and each key in order.

The model has no lines, heaps or queues: for each question it looks through all messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sequitur.base.retry import Backoff
from sequitur.consumer.subscription.dispatch import Dispatch, DispatchLimits, OrderRule
from sequitur.consumer.subscription.redeliveries import Redeliveries
from sequitur.kafka.partition import SourcePartition
from tests.support.examples import examples

_PARTITIONS = [SourcePartition("orders", 0), SourcePartition("orders", 1)]
_KEYS = [b"a", b"", None]
_ARRIVALS = st.lists(
    st.tuples(st.sampled_from(_PARTITIONS), st.sampled_from(_KEYS), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)
_BACKOFF = Backoff(initial_ms=10, maximum_ms=40, jitter=0.5)
_OFFSETS = st.integers(0, 20)


@dataclass
class _Message:
    """A message as the model knows it."""

    where: SourcePartition
    offset: int
    key: bytes | None
    is_out: bool = False
    due_ms: float = 0.0
    deadline_ms: float = 0.0
    times_out: int = 0
    failures: int = 0


@dataclass
class _Model:
    """All that came in and was not acked, in that order."""

    order: OrderRule
    limits: DispatchLimits
    random: Random
    held: list[_Message] = field(default_factory=list)

    @property
    def out(self) -> int:
        return sum(one.is_out for one in self.held)

    def before(self, message: _Message) -> list[_Message]:
        if message.key is None or self.order is OrderRule.NONE:
            return []
        return [one for one in self._of_key(message) if one.offset < message.offset]

    def take(self, now_ms: float) -> _Message | None:
        """Return the first one that may be handed out."""
        self.time_out(now_ms)
        if 0 < self.limits.unacked <= self.out:
            return None
        for message in self.held:
            if message.is_out or message.due_ms > now_ms or self.is_dead(message):
                continue
            before = self.before(message)
            if before and self.order is OrderRule.ONE_OUT:
                continue
            if all(one.is_out for one in before):
                message.is_out = True
                message.times_out += 1
                message.deadline_ms = now_ms + self.limits.ack_timeout_ms
                return message
        return None

    def is_dead(self, message: _Message) -> bool:
        """Whether it has failed too often."""
        return self.limits.redeliveries is not None and message.failures > self.limits.redeliveries

    def fail(self, message: _Message, now_ms: float) -> None:
        """Take it back, and those that are out behind it."""
        message.is_out = False
        message.failures += 1
        delay_ms = _BACKOFF.delay_ms(message.failures, self.random.random())
        message.due_ms = now_ms + delay_ms
        if message.key is not None and self.order is OrderRule.TAKEN_BACK:
            for one in self._of_key(message):
                if one.offset > message.offset:
                    one.is_out = False

    def time_out(self, now_ms: float) -> None:
        """Fail what is out for too long, the oldest handing out first."""
        if not self.limits.ack_timeout_ms:
            return
        while late := [one for one in self.held if one.is_out and one.deadline_ms <= now_ms]:
            oldest_ms = min(one.deadline_ms for one in late)
            self.fail(
                next(one for one in self.turns if one in late and one.deadline_ms == oldest_ms),
                now_ms,
            )

    def _of_key(self, message: _Message) -> list[_Message]:
        return [one for one in self.held if (one.where, one.key) == (message.where, message.key)]

    turns: list[_Message] = field(default_factory=list)
    """As they were handed out."""


class DispatchMachine(RuleBasedStateMachine):
    """Arrivals, acks, failures and time, for a dispatch and for the model."""

    @initialize(
        order=st.sampled_from(OrderRule),
        limits=st.builds(
            DispatchLimits,
            receiver_queue=st.sampled_from([2, 12]),
            unacked=st.sampled_from([0, 4]),
            ack_timeout_ms=st.sampled_from([0, 15]),
            redeliveries=st.sampled_from([None, 0, 2]),
        ),
        seed=st.integers(0, 100),
        lined_for=st.sampled_from([0, 6, 1_000]),
        earlier=st.dictionaries(_OFFSETS, st.integers(1, 3), max_size=5),
    )
    def begin(
        self,
        order: OrderRule,
        limits: DispatchLimits,
        seed: int,
        lined_for: int,
        earlier: dict[int, int],
    ) -> None:
        self.order, self.limits = order, limits
        self.dispatch: Dispatch[tuple[SourcePartition, int]] = Dispatch(
            order,
            limits=limits,
            backoff=_BACKOFF,
            random=Random(seed).random,
            lined_for=lined_for,
        )
        self.earlier = Redeliveries.of(earlier, out=range(0))
        self.model = _Model(order, limits, Random(seed))
        self.ends = dict.fromkeys(_PARTITIONS, 0)
        self.came: set[tuple[SourcePartition, int]] = set()
        self.acked: set[tuple[SourcePartition, int]] = set()
        self.now_ms = 0.0

    @rule(arrivals=_ARRIVALS)
    def arrive(self, arrivals: list[tuple[SourcePartition, bytes | None, int]]) -> None:
        """Messages come in as long as there is room; some offsets hold none."""
        together: list[_Message] = []
        for where, key, gap in arrivals[: self.dispatch.room]:
            if together and (gap or where != together[0].where):
                self._add(together)
                together = []
            offset = self.ends[where] + gap
            self.ends[where] = offset + 1
            message = _Message(where, offset, key)
            message.times_out = self.earlier.among(range(offset, offset + 1)).get(offset, 0)
            message.failures = message.times_out
            together.append(message)
            self.came.add((where, offset))
        if together:
            self._add(together)

    def _add(self, together: list[_Message]) -> None:
        where, first = together[0].where, together[0].offset
        self.dispatch.add(
            where,
            range(first, first + len(together)),
            [one.key for one in together],
            [(where, one.offset) for one in together],
            redeliveries=self.earlier,
        )
        self.model.held += together

    @rule(count=st.integers(1, 6))
    def take(self, count: int) -> None:
        for _ in range(count):
            self._take()

    def _take(self) -> tuple[SourcePartition, int] | None:
        handed = self.dispatch.take(self.now_ms)
        expected = self.model.take(self.now_ms)
        if expected is None:
            assert not handed
            return None
        place = (expected.where, expected.offset)
        assert handed == [(*place, place, expected.times_out - 1)]
        assert place not in self.acked
        if expected in self.model.turns:
            self.model.turns.remove(expected)
        self.model.turns.append(expected)
        if self.order is OrderRule.ONE_OUT:
            assert self.model.before(expected) == []
        return place

    @rule(where=st.sampled_from(_PARTITIONS), offset=_OFFSETS)
    def ack(self, where: SourcePartition, offset: int) -> None:
        """Ack any offset: out, not out, acked, or none."""
        found = self._find(where, offset)
        assert self.dispatch.ack(where, [offset]) == (found is not None)
        self._forget([] if found is None else [found])

    @rule(data=st.data())
    def ack_one_that_is_out(self, data: st.DataObject) -> None:
        if out := [one for one in self.model.held if one.is_out]:
            message = data.draw(st.sampled_from(out))
            assert self.dispatch.ack(message.where, [message.offset])
            self._forget([message])

    @rule(data=st.data())
    def ack_one_that_waits(self, data: st.DataObject) -> None:
        """Ack a message that was taken back, or was never out."""
        if waiting := [one for one in self.model.held if not one.is_out]:
            message = data.draw(st.sampled_from(waiting))
            assert self.dispatch.ack(message.where, [message.offset])
            self._forget([message])

    @rule(where=st.sampled_from(_PARTITIONS), offset=_OFFSETS)
    def ack_cumulative(self, where: SourcePartition, offset: int) -> None:
        found = [one for one in self.model.held if one.where == where and one.offset <= offset]
        assert self.dispatch.ack_cumulative(where, offset) == len(found)
        self._forget(found)

    @rule(where=st.sampled_from(_PARTITIONS), offset=_OFFSETS, stale=st.booleans())
    def negative_ack(self, where: SourcePartition, offset: int, *, stale: bool) -> None:
        """Fail any offset, or an earlier handing out of it."""
        found = self._find(where, offset)
        given = None
        if stale:
            given = 0 if found is None else found.times_out - 2
        failed = self.dispatch.negative_ack(where, offset, self.now_ms, redelivery_count=given)
        assert failed == (found is not None and found.is_out and not stale)
        if failed and found is not None:
            self.model.fail(found, self.now_ms)

    @rule(data=st.data())
    def fail_one_that_is_out(self, data: st.DataObject) -> None:
        if out := [one for one in self.model.held if one.is_out]:
            message = data.draw(st.sampled_from(out))
            assert self.dispatch.negative_ack(
                message.where,
                message.offset,
                self.now_ms,
                redelivery_count=message.times_out - 1,
            )
            self.model.fail(message, self.now_ms)

    @rule(by_ms=st.sampled_from([1, 5, 15, 100]))
    def wait(self, by_ms: int) -> None:
        """Time passes, with or without anybody who takes."""
        self.now_ms += by_ms

    @invariant()
    def counts_agree(self) -> None:
        """It holds as much as the model does; in each key what is out comes first."""
        if not hasattr(self, "model"):
            return
        for where in _PARTITIONS:
            found = self.dispatch.redeliveries(where).among(range(self.ends[where]))
            for one in self.model.held:
                if one.where == where:
                    assert found.get(one.offset, 0) == one.failures + one.is_out
        dead = {(one.where, one.offset) for one in self.model.held if self.model.is_dead(one)}
        assert {(one.where, one.offset) for one in self.dispatch.dead()} == dead
        held = {(one.where, one.offset) for one in self.model.held}
        assert set(self.dispatch.held()) == held == self.came - self.acked
        assert self.dispatch.unacked == self.model.out
        assert self.dispatch.queued == len(held) - self.model.out
        for one in self.model.held:
            if one.is_out:
                assert all(earlier.is_out for earlier in self.model.before(one))

    def teardown(self) -> None:
        """Whoever takes and acks for long enough gets all there is."""
        if not hasattr(self, "model"):
            return
        for one in list(self.model.held):
            if one.is_out:  # a receiver that is slow
                self.dispatch.ack(one.where, [one.offset])
                self._forget([one])
        while self.model.held:
            for dead in self.dispatch.dead():  # its letter was written
                self.ack(dead.where, dead.offset)
            place = self._take()
            if place is None:
                change_ms = self.dispatch.next_change_ms()
                if change_ms is None:
                    assert self.dispatch.dead() or not self.model.held, "it is never handed out"
                    continue
                self.now_ms = max(self.now_ms + 1, change_ms)
            else:
                self.ack(*place)
        assert self.acked == self.came

    def _find(self, where: SourcePartition, offset: int) -> _Message | None:
        found = (one for one in self.model.held if (one.where, one.offset) == (where, offset))
        return next(found, None)

    def _forget(self, messages: list[_Message]) -> None:
        for one in messages:
            self.model.held.remove(one)
            self.acked.add((one.where, one.offset))


DispatchMachine.TestCase.settings = settings(max_examples=examples(3), stateful_step_count=60)
TestDispatch = DispatchMachine.TestCase


def test_key_order_and_failures_at_once() -> None:
    """Thousands of messages of few keys, a third of which fail: each key comes in order."""
    random = Random(7)
    for order in (OrderRule.ONE_OUT, OrderRule.TAKEN_BACK):
        dispatch: Dispatch[tuple[bytes, int]] = Dispatch(
            order, limits=DispatchLimits(receiver_queue=10_000), random=random.random
        )
        for offset in range(5_000):
            key = b"key-%d" % (offset % 13)
            dispatch.add(_PARTITIONS[0], range(offset, offset + 1), [key], [(key, offset)])
        acked: dict[bytes, list[int]] = {}
        now_ms = 0.0
        while dispatch.unacked + dispatch.queued:
            handed = dispatch.take(now_ms)
            if not handed:
                change_ms = dispatch.next_change_ms()
                assert change_ms is not None
                now_ms = change_ms
                continue
            _, _, (key, offset), _ = handed[0]
            if random.random() < 1 / 3:
                assert dispatch.negative_ack(_PARTITIONS[0], offset, now_ms)
            else:
                assert dispatch.ack(_PARTITIONS[0], [offset])
                acked.setdefault(key, []).append(offset)
        assert {key: sorted(offsets) for key, offsets in acked.items()} == acked
        assert sum(map(len, acked.values())) == 5_000

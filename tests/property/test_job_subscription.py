"""Lives of a job with a subscription, without Spark and Kafka: deaths and losses at any place."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.stored import dump
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.stored_records import StoredSubscription
from sequitur.errors import SubscriptionError, UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering import job_subscription
from sequitur.pipelines.ordering.job_subscription import JobSubscription
from sequitur.pipelines.store.job_identity import NO_FORMER_JOB, SubscribedJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.subscription_state import SubscriptionState

_IN, _OUT = SourcePartition("in", 0), SourcePartition("out", 0)
_MOST_LIVES = 6


class DiedError(Exception):
    """The end of a life."""


@dataclass
class _Checkpoint:
    """What a job keeps, and the rows that its newest step lets out."""

    root: str = "folder"
    owner: int = 1
    documents: dict[str, Any] = field(default_factory=dict)
    step: int = -1
    done: int = -1
    position: int = 0
    held: set[int] = field(default_factory=set)
    leaving: list[int] = field(default_factory=list)
    left: int = 0
    rows: int = 0

    def read_document(self, name: str, meaning: Callable[[Any], Any]) -> Any:
        found = self.documents.get(name)
        return None if found is None else meaning(found)

    def write_document(self, name: str, document: Any) -> None:
        self.documents[name] = document


@dataclass
class _World:
    """What outlives a job: the cursors, the input and the output."""

    random: Random
    end: int
    absent: set[int]
    out: list[int] = field(default_factory=list)
    stored: StoredSubscription | None = None
    checkpoint: _Checkpoint | None = None
    deaths: list[tuple[Cursor, int]] = field(default_factory=list)
    may_fail: bool = True

    def happens(self, chance: float) -> bool:
        """Tell whether what goes wrong now and then does."""
        return self.may_fail and self.random.random() < chance

    def may_die(self) -> None:
        if self.happens(0.06):
            raise DiedError

    def copy(self) -> StoredSubscription | None:
        if self.stored is None:
            return None
        cursors = self.stored.cursors.items()
        return StoredSubscription(
            self.stored.state,
            {where: PartitionCursor(one.cursor.copy(), one.sizes) for where, one in cursors},
        )

    def high_watermarks(self, wanted: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        return {where: len(self.out) if where == _OUT else self.end for where in wanted}

    def low_watermarks(self, wanted: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        return dict.fromkeys(wanted, 0)

    def cover(self, topics: Iterable[str], **_: Any) -> None:
        """All topics are registered."""

    def tell(self, _: str) -> None:
        """Nobody reads it."""


class _Owner:
    """Writes cursors, or fails."""

    partition, group = 5, "sequitur-s"

    def __init__(self, world: _World) -> None:
        self._world = world
        self.stored = world.copy()

    def write(
        self,
        state: SubscriptionState,
        cursors: Iterable[PartitionCursor],
        *,
        removed: Iterable[SourcePartition] = (),
    ) -> None:
        if state.step > 0 and self._world.happens(0.2):
            raise UnansweredError("no broker answers")
        known = {} if self._world.stored is None else dict(self._world.stored.cursors)
        for where in removed:
            known.pop(where, None)
        for one in cursors:
            known[_IN] = one
        self._world.stored = StoredSubscription(state, known)
        self._world.stored = self._world.copy()


class _Life:
    """One life of a job."""

    def __init__(self, world: _World) -> None:
        self._world = world
        if world.checkpoint is None:
            world.checkpoint = _Checkpoint()
        self._kept = world.checkpoint
        services: Any = world
        take: Any = lambda: _Owner(world)  # noqa: E731 - one line
        self._subscription = JobSubscription(
            "s", world.copy(), take, services, services, record=services
        )

    def run(self) -> None:
        kept, world = self._kept, self._world
        head: Any = None if kept.step < 0 else SimpleNamespace(step=kept.step)
        checkpoint: Any = kept
        self._subscription.claim(checkpoint, head, kept.done, {"out": 1})
        world.may_die()
        if kept.step < 0:
            ends = {_IN: world.end}
            begins = self._subscription.begin({_IN: 0}, ends, {"in": "id"}, latest=False, now_ms=0)
            world.may_die()
            kept.step, kept.position = 0, begins[_IN]
        elif kept.done == kept.step:
            self._acknowledge()
        if kept.done < kept.step:
            self._finish()
        while kept.position < world.end or kept.held:
            self._step()

    def _step(self) -> None:
        """Read some rows, and decide which leave."""
        kept, world = self._kept, self._world
        stop = min(world.end, kept.position + world.random.randrange(1, 12))
        acked = self._subscription.acked({_IN: kept.position}, {_IN: stop}).get(_IN)
        ranges = [] if acked is None else list(zip(*acked, strict=True))
        rows = set(range(kept.position, stop)) - world.absent
        kept.held |= {one for one in rows if not any(first <= one < last for first, last in ranges)}
        is_last = stop == world.end and not world.may_fail
        kept.leaving = [one for one in sorted(kept.held) if is_last or world.random.random() < 0.4]
        kept.step, kept.position, kept.left, kept.rows = kept.step + 1, stop, 0, len(rows)
        world.may_die()
        self._finish()

    def _finish(self) -> None:
        """Let out what is not out yet; mark the step as done."""
        kept = self._kept
        for one in kept.leaving[kept.left :]:
            self._world.may_die()
            self._world.out.append(one)
            kept.left += 1
        kept.held -= set(kept.leaving)
        kept.done = kept.step
        self._world.may_die()
        self._acknowledge()
        self._world.may_die()

    def _acknowledge(self) -> None:
        kept = self._kept
        entry: Any = SimpleNamespace(
            step=kept.step,
            kind=StepKind.BATCH if kept.step else StepKind.RESET,
            frontier_ms=kept.step,
            topics={"in": "id"},
            counted={_IN: (kept.rows, kept.rows)},
            clock=SimpleNamespace(partitions={_IN: SimpleNamespace(position=kept.position)}),
        )
        checkpoint: Any = kept
        while True:
            try:
                self._subscription.step_is_done(
                    checkpoint, entry, waiting=(), transactions=(0, ""), now_ms=0
                )
            except UnansweredError:  # the query is restarted
                self._world.may_die()
            else:
                return


def _held(checkpoint: Any, *_: object) -> dict[SourcePartition, Any]:
    return {_IN: np.array(sorted(checkpoint.held), np.int64)} if checkpoint.held else {}


@given(st.randoms(use_true_random=False), st.integers(0, 50))
def test_what_is_acked_is_out_once_and_what_comes_again_is_counted(
    random: Random, end: int
) -> None:
    """Wherever it dies, with and without its checkpoint, and with writes that fail."""
    absent = {one for one in range(end) if random.random() < 0.2}
    world = _World(random, end, absent)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_subscription, "held_offsets", _held)
        for life in range(_MOST_LIVES):
            world.may_fail = life < _MOST_LIVES - 1
            try:
                _Life(world).run()
            except DiedError:
                if world.stored is not None and _IN in world.stored.cursors:
                    cursor = world.stored.cursors[_IN].cursor.copy()
                    world.deaths.append((cursor, len(world.out)))
                if random.random() < 0.6:
                    world.checkpoint = None
    rows = set(range(end)) - absent
    assert set(world.out) == rows
    for cursor, out in world.deaths:
        acked = {one for one in rows if cursor.is_acked(one)}
        assert acked & set(world.out[out:]) == set()
        assert acked - set(world.out[:out]) == set()
    assert world.stored is not None
    assert world.stored.cursors[_IN].cursor.committed_offset == end
    assert len(world.out) - len(rows) <= world.stored.state.repeated


@pytest.mark.promise("sub-subscription-registered-nothing")
def test_a_job_whose_cursors_are_lost_begins_nowhere_without_its_checkpoint() -> None:
    """It takes the subscription from nobody; a checkpoint knows where it has got to."""
    world: Any = _World(Random(1), 0, set())
    take: Any = lambda: _Owner(world)  # noqa: E731 - one line
    subscription = JobSubscription(
        "s", None, take, world, world, record=world, lost="has no stored cursors"
    )
    kept: Any = _Checkpoint()
    with pytest.raises(SubscriptionError, match="has no stored cursors"):
        subscription.claim(kept, None, -1, {"out": 1})
    assert subscription.partition is None
    head: Any = SimpleNamespace(step=3)
    kept.write_document("subscription.json", dump(SubscribedJob("s", "a", NO_FORMER_JOB)))
    subscription.claim(kept, head, 3, {"out": 1})
    assert world.stored.state.checkpoint == "a"

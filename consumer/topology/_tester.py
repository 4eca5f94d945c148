"""Runs a topology on plain lists, with a clock that is driven by hand: no Kafka, no Spark."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from consumer.topology._executor import Executor
from consumer.topology._pending import EventOutcome, runs_now, settle
from consumer.topology._rules import Ordering, Placement, random_ids
from consumer.topology._settings import Outputs, ProcessSettings
from consumer.topology._topology import EVENT_FIELDS, Kind
from consumer.topology._tree_view import TreeRecorder, TupleTree
from consumer.topology._tuple import EventValues, FailReason, Failure, Root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consumer.topology._emission import OutputRecord
    from consumer.topology._topology import Topology

_MS: Final = 1000
_TOPIC: Final = "events"
_SHORTEST: Final = 2
_LONGEST: Final = 3

_running: ContextVar[TopologyTester] = ContextVar("_running")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was given up.

    Attributes:
        event: The event.
        reason: Why its last attempt failed.
        detail: A traceback, or what is known.
        attempts: How often it was tried.
        path: The components that the failed tuple had come through, the spout first.
    """

    event: EventValues
    reason: FailReason
    detail: str
    attempts: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Waiting:
    event: EventValues
    attempt: int
    retry_at_ms: int
    is_held: bool


class TopologyTester:
    """Runs a topology on plain lists.

    Each `run` is a batch: events that wait for another attempt and whose time has come, then the
    new ones in event-time order. ::

        tester = TopologyTester(topology)
        tester.run([{"value": "to be or not to be"}])
        assert tester.records("counts")[-1] == (b"be", b"2")
        print(tester.trees[0].as_text())

    Args:
        topology: The topology.
        settings: How it is run; of these `ackers` counts where it is 0.
        parallelism: Tasks of bolts that are declared without a number of them; or those of some
            bolts, by name. The ordered stream has one task.
        seed: Of all that is random: roots, edges, the jitter of retries.
        ids: The first edges, in the order in which they are drawn; random ones behind them.

    Attributes:
        outputs: Records by output, of finished trees, in order; of all trees with
            `outputs = "immediate"`.
        acked: Events whose trees are done, in the order in which that became known.
        dead_letters: Events that were given up.
        trees: The tree of each attempt of each event.
        late_acks: Acks of tuples whose tree had failed already.
        untracked_failures: Failures of trees that nobody waits for.
        finish_failures: Bolts whose `finish_batch` raised, and what.
    """

    def __init__(
        self,
        topology: Topology,
        settings: ProcessSettings | None = None,
        *,
        parallelism: int | Mapping[str, int] = 1,
        seed: int = 0,
        ids: Iterable[int] = (),
    ) -> None:
        self._topology = topology
        self._settings = settings or ProcessSettings()
        self._placement = _all_here(topology, parallelism)
        self._random = Random(seed)
        self._next_root = random_ids([seed, 0])
        self._next_id = _those_then(ids, random_ids([seed, 1]))
        self._now_s = 0.0
        self._offset = 0
        self._waiting: list[_Waiting] = []
        self._states: dict[tuple[str, int], bytes] = {}
        self.outputs: dict[str, list[OutputRecord]] = {one.id: [] for one in topology.outputs}
        self.acked: list[EventValues] = []
        self.dead_letters: list[DeadLetter] = []
        self.trees: list[TupleTree] = []
        self.late_acks = 0
        self.untracked_failures = 0
        self.finish_failures: list[tuple[str, str]] = []

    @staticmethod
    def running() -> TopologyTester:
        """The tester whose `run` is going on: for a bolt of a test that has to move its clock.

        Raises:
            LookupError: None is.
        """
        return _running.get()

    @property
    def now_s(self) -> float:
        """What the clock shows, in seconds; it begins at 0."""
        return self._now_s

    @property
    def failed(self) -> list[EventValues]:
        """Events that wait for another attempt."""
        return [one.event for one in self._waiting if not one.is_held]

    @property
    def held(self) -> list[EventValues]:
        """Events that wait for another event."""
        return [one.event for one in self._waiting if one.is_held]

    @property
    def next_retry_s(self) -> float | None:
        """When the next of the events that wait may run; None if none waits."""
        times_ms: dict[Any, int] = {}
        for place, one in enumerate(self._waiting):
            # The first of a key holds up the others, whenever these could run.
            by_key = self._settings.ordering is Ordering.KEY and one.event.key is not None
            times_ms.setdefault(one.event.key if by_key else place, one.retry_at_ms)
        return min(times_ms.values()) / _MS if times_ms else None

    def records(self, output: str) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of each record of an output."""
        return [(record.key, record.value) for record in self.outputs[output]]

    def advance(self, seconds: float) -> None:
        """Move the clock; also from within a bolt, see `running`.

        Raises:
            ValueError: Backwards.
        """
        if seconds < 0:
            raise ValueError(f"seconds = {seconds}: the clock does not go back")
        self._now_s += seconds

    def run(self, events: Iterable[Any] = ()) -> None:
        """Run a batch.

        Args:
            events: `EventValues`; or mappings with some of its fields; or a key, a value and
                perhaps an event time in ms. Text is encoded, other values become JSON, and an
                event without a time has that of the clock.

        Raises:
            BoltStateError: What a bolt wants kept cannot be pickled.
            ValueError: Something is no event.
        """
        new = sorted((self._event(given) for given in events), key=lambda event: event[3:7])
        runs = self._due()
        taking_part = [one for one, is_run in zip(self._waiting, runs, strict=True) if is_run]
        left = [one for one, is_run in zip(self._waiting, runs, strict=True) if not is_run]
        keeps_order = self._settings.ordering is Ordering.KEY
        blocked = {one.event.key for one in left if keeps_order and one.event.key is not None}
        # Not told to the executor: events that run now are ahead of those that block their key.
        for event in new:
            is_held = event.key in blocked and self._is_tracked(event)
            (left if is_held else taking_part).append(_Waiting(event, 1, 0, is_held))
        token = _running.set(self)
        try:
            batch = _Batch(self, taking_part)
        finally:
            _running.reset(token)
        self._waiting = sorted([*left, *batch.waiting], key=lambda one: one.event[3:7])

    def retry(self) -> None:
        """Run a batch of those that wait and whose time has come, without new events."""
        self.run()

    def retry_all(self) -> None:
        """Move the clock from retry to retry, until each event is acked or dead-lettered."""
        while (next_s := self.next_retry_s) is not None:
            self.advance(max(0.0, next_s - self._now_s))
            self.run()

    def _is_tracked(self, event: EventValues) -> bool:
        tracked = self._topology.spout.tracked
        has_id = tracked if isinstance(tracked, bool) else tracked(event)
        return has_id and self._settings.ackers != 0

    def _due(self) -> list[bool]:
        if not self._waiting:
            return []
        due: list[bool] = runs_now(
            _numbered([one.event.key for one in self._waiting]),
            np.array([one.retry_at_ms for one in self._waiting], np.int64),
            self._now_ms,
            keeps_order=self._settings.ordering is Ordering.KEY,
        ).tolist()
        return due

    @property
    def _now_ms(self) -> int:
        return round(self._now_s * _MS)

    def _event(self, given: Any) -> EventValues:
        offset, now_ms = self._offset, self._now_ms
        self._offset += 1
        if isinstance(given, EventValues):
            return given
        if isinstance(given, Mapping):
            fields = dict(given)
        elif isinstance(given, Sequence) and _SHORTEST <= len(given) <= _LONGEST:
            fields = dict(zip(("key", "value", "event_time_ms"), given, strict=False))
        else:
            raise ValueError(f"{given!r} is no event: give a mapping, or key, value and time in ms")
        unknown = [name for name in fields if name not in EVENT_FIELDS]
        if unknown:
            known = ", ".join(EVENT_FIELDS)
            raise ValueError(f"event {given!r} has a field {unknown[0]!r}; expected: {known}")
        time_ms = fields.get("event_time_ms", now_ms)
        return EventValues(
            key=_encoded(fields.get("key")),
            value=_encoded(fields.get("value")),
            headers=fields.get("headers", ()),
            event_time_ms=time_ms,
            topic=fields.get("topic", _TOPIC),
            partition=fields.get("partition", 0),
            offset=fields.get("offset", offset),
            timestamp_ms=fields.get("timestamp_ms", time_ms),
        )


class _Batch:
    """A batch of a tester, from its events to what became of them."""

    def __init__(self, tester: TopologyTester, taking_part: Sequence[_Waiting]) -> None:
        self._tester = tester
        self._settings = tester._settings
        self._taking_part = taking_part
        self._written: list[tuple[str, OutputRecord]] = []
        self._recorder = TreeRecorder()
        self._trees: list[TupleTree] = []
        # What the executor itself has pickled.
        states = {place: pickle.loads(kept) for place, kept in tester._states.items()}  # noqa: S301
        self._executor = Executor(
            tester._topology,
            tester._placement,
            self._settings.rules,
            clock=lambda: tester.now_s,
            next_id=tester._next_id,
            write=lambda output, record: self._written.append((output, record)),
            states=states,
            trace=self._recorder,
            runs_inline=True,
        )
        roots = [self._fed(one) for one in taking_part]
        self._executor.finish()
        tester._states = self._executor.states()
        self._executor.close()
        self.waiting = self._settled(roots)

    def _fed(self, one: _Waiting) -> Root:
        tester, event = self._tester, one.event
        root = Root(
            tester._next_root(),
            event,
            one.attempt,
            is_tracked=tester._is_tracked(event),
        )
        self._trees.append(self._recorder.begin(root, event))
        self._executor.feed(root, event)
        return root

    def _settled(self, roots: Sequence[Root]) -> list[_Waiting]:
        """What became of each; gives those that wait on."""
        tester, executor, settings = self._tester, self._executor, self._settings
        places = {root: place for place, root in enumerate(roots)}
        settlement = settle(
            _numbered([root.key if root.is_tracked else None for root in roots]),
            np.array([root.attempt for root in roots], np.int64),
            np.array([root.failure is not None for root in roots], np.bool_),
            np.array([root.is_held for root in roots], np.bool_),
            tester._now_ms,
            policy=settings.retry,
            random=tester._random.random(),
            shared=[
                np.array([places[root] for root in several], np.intp)
                for several in executor.together
            ],
            keeps_order=settings.ordering is Ordering.KEY,
        )
        outcomes = dict(zip(roots, settlement.outcomes.tolist(), strict=True))
        for output, record in self._written:
            is_done = outcomes.get(record.root, EventOutcome.DONE) == EventOutcome.DONE
            if is_done or settings.outputs is Outputs.IMMEDIATE:
                tester.outputs[output].append(record)
        tester.late_acks += executor.late_acks
        tester.untracked_failures += executor.untracked_failures
        tester.finish_failures += executor.finish_failures
        tester.trees += self._trees
        waiting = []
        columns = (settlement.attempts.tolist(), settlement.retry_at_ms.tolist())
        for one, root, tree, attempt, at_ms in zip(
            self._taking_part, roots, self._trees, *columns, strict=True
        ):
            outcome = EventOutcome(outcomes[root])
            tree.verdict = _verdict(root, outcome)
            if outcome in {EventOutcome.RETRY, EventOutcome.HELD}:
                is_held = outcome is EventOutcome.HELD
                waiting.append(_Waiting(one.event, attempt, at_ms, is_held))
            elif outcome is EventOutcome.DONE and (root.is_tracked or settings.ackers == 0):
                tester.acked.append(one.event)
            elif outcome is EventOutcome.DEAD and root.failure is not None:
                tester.dead_letters.append(_dead_letter(one, root.failure))
        return waiting


def _verdict(root: Root, outcome: EventOutcome) -> str:
    if not root.is_tracked:
        return "untracked"
    if outcome is EventOutcome.DONE:
        return "acked"
    if outcome is EventOutcome.HELD or root.failure is None:
        return "held"
    end = "dead-lettered" if outcome is EventOutcome.DEAD else "to be tried again"
    return f"failed ({root.failure.reason}), {end}"


def _dead_letter(one: _Waiting, failure: Failure) -> DeadLetter:
    return DeadLetter(one.event, failure.reason, failure.detail, one.attempt, failure.path)


def _all_here(topology: Topology, parallelism: int | Mapping[str, int]) -> Placement:
    tasks: dict[str, int] = {}
    for one in topology.components.values():
        if one.kind is Kind.SPOUT:
            tasks[one.id] = 1
        elif one.kind is Kind.BOLT:
            default = parallelism if isinstance(parallelism, int) else parallelism.get(one.id, 1)
            tasks[one.id] = one.parallelism or default
    return Placement(tasks, {name: range(number) for name, number in tasks.items()})


def _those_then(first: Iterable[int], then: Callable[[], int]) -> Callable[[], int]:
    return itertools.chain(first, iter(then, None)).__next__


def _numbered(keys: Sequence[bytes | None]) -> Any:
    numbers: dict[bytes, int] = {}
    return np.array(
        [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys], np.int64
    )


def _encoded(given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    return given.encode() if isinstance(given, str) else msgspec.json.encode(given)

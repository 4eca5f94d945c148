"""Runners of bolts in a transactional topology: what they do differently from other runners."""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
from collections import Counter, deque
from enum import EnumType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.base.copy_headers import FailReason
from sequitur.base.text import said_by
from sequitur.consumer.topology.api.bolt import BatchBolt, keeps_of_batch
from sequitur.consumer.topology.api.groupings import task_of_group
from sequitur.consumer.topology.engine.concurrency import ConcurrentRunner
from sequitur.consumer.topology.engine.runner import REPEATS, Runner
from sequitur.consumer.topology.engine.task_output import detail_of
from sequitur.consumer.topology.engine.trees import ACKED, FAILED, TrackedTuple
from sequitur.consumer.topology.state.map_state import CommitterStates
from sequitur.consumer.topology.state.store import Writer
from sequitur.consumer.topology.transactional.attempt import BatchFailure, Cause, Phase
from sequitur.consumer.topology.transactional.builder import BatchOutputCollector
from sequitur.errors import (
    NOT_THE_USERS,
    FailBatch,
    StateError,
    StateOvertakenError,
    StateOwnerError,
    StateUnavailableError,
    StateValueError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sequitur.consumer.topology.api.bolt import BaseBolt
    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.engine.concurrency import Call
    from sequitur.consumer.topology.engine.task_output import Environment
    from sequitur.consumer.topology.state.store import State
    from sequitur.consumer.topology.transactional.attempt import BatchOutcome, Transaction
    from sequitur.consumer.topology.transactional.builder import TransactionContext


_PARTS: Final = 4
"""A copy is taken after a quarter of all tuples. Failures make that a smaller share."""
_BYTES_EACH: Final = 1 << 14
"""At most so many bytes are pickled for each tuple: a bolt that grows is copied less often."""
_MOST: Final = 1 << 12  # after so many tuples, given or emitted, a copy is taken at the latest
_MOST_OF_A_CALL: Final = 1 << 16
"""At most so many emitted tuples wait for the next copy: a call that emits more is not undone."""


_OWN_WAYS: Final = ("__getstate__", "__reduce__", "__reduce_ex__", "__setstate__")


@functools.lru_cache(maxsize=4_096)
def _is_copied_whole(kind: type) -> bool:
    """Return whether pickling an object of a class surely copies all that it has.

    A class that says how its objects are pickled may leave something out: a client or a buffer
    comes back empty. Classes of the standard library and of NumPy leave nothing out.
    """
    if _is_known(kind.__module__) or isinstance(kind, EnumType):
        return True
    if kind in copyreg.dispatch_table:
        return False
    for name in _OWN_WAYS:
        found, default = getattr(kind, name, None), getattr(object, name, None)
        # A dataclass with slots has ways that were written for it.
        if found is not default and getattr(found, "__module__", None) != "dataclasses":
            return False
    # Without arguments that are pickled with it, a `__new__` of its own may ask for some.
    has_arguments = hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__")
    makers = (one for one in kind.__mro__ if "__new__" in vars(one))
    return has_arguments or _is_known(next(makers).__module__)


def _is_known(module: str) -> bool:
    name = module.partition(".")[0]
    return name in sys.stdlib_module_names or name == "numpy"


def _is_whole(one: Any) -> bool:
    """Return whether a copy has all that the object has. A copied view has memory of its own."""
    if isinstance(one, np.ndarray) and one.base is not None:
        return False
    kind: Any = type(one)
    return isinstance(one, type) or _is_copied_whole(kind)


class BoltCopies:
    """The newest copy of a bolt, the tuples that it got since, and what it emitted for them.

    Readers get what the bolt has emitted when its next copy is taken. Until then its calls can be
    undone. ADR 39 says when a copy is taken. A bolt has no copy if it holds an object whose copy
    may not be whole.
    """

    def __init__(self, bolt: BaseBolt, shared: Sequence[Any]) -> None:
        self.since: list[TrackedTuple] = []
        self.emitted: deque[Callable[[], Any]] = deque()
        self._given = self._failures = 0  # tuples that are in the copy, and returns to one
        self._shared = {id(one): one for one in shared}
        self._tuples: dict[int, TrackedTuple] = {}
        self._copy: bytes | None = None
        self.take(bolt)

    @property
    def can_go_back(self) -> bool:
        return self._copy is not None

    def drop(self) -> None:
        """Take no further copies, and give readers what has waited."""
        self._copy = None
        self._give_out()

    def add(self, bolt: BaseBolt, given: TrackedTuple) -> None:
        if self._copy is None:
            return
        self.since.append(given)
        if len(self.since) >= self._least or len(self.emitted) >= _MOST:
            self.take(bolt)

    def back(self) -> tuple[BaseBolt, list[TrackedTuple]]:
        """Return the bolt as it was copied, and the tuples that it got since."""
        assert self._copy is not None
        self._failures += 1
        self._count_least(self._copy)
        since, self.since = self.since, []
        self.emitted.clear()
        unpickler = pickle.Unpickler(io.BytesIO(self._copy))  # noqa: S301 - our own
        unpickler.persistent_load = self._known  # type: ignore[method-assign]
        bolt: BaseBolt = unpickler.load()
        return bolt, since

    def take(self, bolt: BaseBolt) -> None:
        kept: dict[int, TrackedTuple] = {}

        def number(one: Any) -> int | None:
            if isinstance(one, TrackedTuple):
                kept[id(one)] = one
                return id(one)
            if id(one) in self._shared:
                return id(one)
            if not _is_whole(one):
                raise pickle.PicklingError(f"a copy of {type(one).__name__!r} may not be whole")
            return None

        file = io.BytesIO()
        pickler = pickle.Pickler(file, protocol=5)
        pickler.persistent_id = number  # type: ignore[method-assign]
        try:
            pickler.dump(bolt)
        except NOT_THE_USERS:
            raise
        except BaseException:  # noqa: BLE001 - it cannot be copied
            self.drop()
            return
        self._copy, self._tuples = file.getvalue(), kept
        self._given += len(self.since)
        self._count_least(self._copy)
        self._give_out()

    def _count_least(self, copy: bytes) -> None:
        """Set how many tuples come before the next copy: a share of all tuples so far."""
        parts = _PARTS * (1 + _PARTS * self._failures)
        share = (self._given - 1) // (parts - 1)
        self._least = min(max(share, len(copy) // _BYTES_EACH), _MOST)

    def _give_out(self) -> None:
        self.since.clear()
        while self.emitted:
            self.emitted.popleft()()

    def _known(self, number: int) -> Any:
        return self._tuples.get(number) or self._shared[number]


ENDS_THE_JOB: Final = (StateOwnerError, StateOvertakenError)
"""Somebody else's transactions stand in the database: no further try can change that."""


def writer_of(topology: str, transaction: Transaction, component: str, task: int) -> Writer:
    return Writer(
        topology=topology,
        epoch=transaction.epoch,
        component=component,
        task=task,
        transaction=transaction.attempt,
        has_committed=component in transaction.committed,
        batch=transaction.batch,
        host=transaction.host,
        has_task_committed=task < transaction.committed.get(component, 0),
    )


def count_kept(given: TrackedTuple, count: int) -> None:
    """Count the tuples of each event in what a task keeps: `count` is 1, or -1 to undo."""
    for root, _ in given.trees():
        root.kept += count


def _as_key(value: Any, keys: Collection[Any]) -> Any:
    """Return a tuple's value in the form of a state's key; None if it cannot be a key."""
    if isinstance(value, bytes) and value not in keys:
        return value.decode(errors="surrogateescape")
    return value if isinstance(value, str | int | bytes) else None


class _InTransaction(Runner):
    """Fails this try at the batch by what fails of the batch itself, and not of an event."""

    def _repeats(self, given: TrackedTuple) -> int:
        """Return how often a call is repeated that raises.

        A call is not repeated if its failure only costs its event an attempt. These are repeated:

        - calls of a bolt that runs again, most of which have passed before
        - calls in the commit phase
        - calls for what belongs to the batch, and not to an event

        Otherwise an error by chance would fail each try at a large batch.
        """
        transaction = self._transaction
        is_dear = (
            transaction.is_again
            or transaction.phase is Phase.COMMIT
            or not all(root.is_tracked for root, _ in given.trees())
        )
        return REPEATS if is_dear and not given.is_tick else 0

    @property
    def _outcome(self) -> BatchOutcome:
        return self._environment.outcome

    @property
    def _transaction(self) -> Transaction:
        assert self._environment.transaction is not None
        return self._environment.transaction

    def raised(self, given: TrackedTuple, error: BaseException) -> None:
        if isinstance(error, FailBatch):
            given.owner = FAILED
            self._outcome.fail(self._component, Cause.ASKED, said_by(error))
        else:
            super().raised(given, error)

    def finish_raised(self, error: BaseException) -> None:
        if isinstance(error, ENDS_THE_JOB):
            raise error
        self._end_the_job_by(error)
        cause = Cause.RAISED
        if isinstance(error, FailBatch):
            cause = Cause.ASKED
        elif isinstance(error, StateUnavailableError):
            cause = Cause.UNAVAILABLE
        elif isinstance(error, StateValueError):
            refused = BatchFailure(
                self._component,
                Cause.REFUSED,
                said_by(error),
                self.roots_of(error),
                frozenset(error.keys),
                error.is_key,
            )
            self._outcome.failures.append(refused)
            return
        says_all = isinstance(error, FailBatch | StateError)
        self._outcome.fail(self._component, cause, said_by(error) if says_all else detail_of(error))

    def roots_of(self, error: StateValueError) -> tuple[frozenset[int], ...]:  # noqa: ARG002 - for batch bolts
        """Return the ids of the events that may have the refused key, by field of tuples."""
        return ()

    def finish_failed(self, detail: str, reason: FailReason = FailReason.EXCEPTION) -> None:
        """Fail the try. No bolt goes on from a failed try (`Instances`)."""
        del reason
        self._outcome.fail(self._component, Cause.RAISED, detail)

    def _fail(self, given: TrackedTuple, reason: FailReason, detail: str) -> None:
        super()._fail(given, reason, detail)
        is_events = all(root.is_tracked for root, _ in given.trees())
        if not given.is_tick and (self._transaction.phase is Phase.COMMIT or not is_events):
            self._outcome.fail(self._component, Cause.RAISED, detail)


class TransactionRunner(_InTransaction):
    """Runs a task of a bolt, one call at a time.

    If a tuple fails in a bolt that keeps something of its batch, the bolt goes on as if it had
    never got the tuple. That takes a bolt that can be copied. A bolt with a snapshot is copied only
    if it runs again.
    """

    def __init__(self, environment: Environment, context: Any, bolt: BaseBolt) -> None:
        super().__init__(environment, context, bolt)
        self._keeps = keeps_of_batch(bolt)
        self._is_copied = isinstance(bolt, BatchBolt) or self._transaction.is_again
        self._copies: BoltCopies | None = None
        self._raised: Counter[TrackedTuple] = Counter()
        self._is_new, self._is_undone, self._has_emitted = True, False, False

    def run(self, given: TrackedTuple) -> None:
        first = self._run_once(given, is_new=True)
        if not first:
            return
        again = deque(first)
        while again:
            self._users.begin_again()
            one = again.popleft()
            again.extendleft(reversed(self._run_once(one, is_new=one is given)))
        self._raised.clear()

    def _run_once(self, given: TrackedTuple, *, is_new: bool) -> Sequence[TrackedTuple]:
        """Call the bolt for a tuple; return the tuples to give to it again.

        Args:
            given: The tuple.
            is_new: Whether no call for it has passed.
        """
        keeps = self._keeps and not given.is_tick
        copies = self._copied() if keeps else None
        self._is_new, self._is_undone, self._has_emitted = is_new, False, False
        if not is_new:  # it was acked then
            given.owner, self._acks = self, False
        super().run(given)
        self._output.unsent, self._acks = None, True
        if given.owner is FAILED or self._is_undone:
            return self._undone(given, copies, was_kept=not is_new, keeps=keeps)
        if not is_new:
            given.owner = ACKED
        elif keeps:
            count_kept(given, 1)
        if copies is not None:
            copies.add(self.bolt, given)
        return ()

    def _copied(self) -> BoltCopies | None:
        """Make the bolt's emits wait if they can be undone, and return the bolt's copies."""
        copies = self._copies
        if copies is None and self._is_copied:
            copies = self._copies = BoltCopies(self.bolt, self._shared)
        if copies is not None and copies.can_go_back:
            self._output.unsent = copies.emitted
        return copies

    def _undone(
        self, given: TrackedTuple, copies: BoltCopies | None, *, was_kept: bool, keeps: bool
    ) -> Sequence[TrackedTuple]:
        """Undo a call if possible, and return the tuples to give to the bolt again."""
        again = [given] if self._is_undone else []
        if copies is not None and copies.can_go_back:
            if was_kept and not again:
                count_kept(given, -1)
            bolt, since = copies.back()
            self.renew(bolt)
            return [*since, *again]
        if keeps and not was_kept:
            count_kept(given, 1)
        return again

    @property
    def _shared(self) -> Sequence[Any]:
        """What the bolt shares with its copies."""
        return self.context, self.collector

    def raised(self, given: TrackedTuple, error: BaseException) -> None:
        """Have the call repeated, unless readers already have what it emitted."""
        copies = self._copies
        can_go_back = copies is not None and copies.can_go_back
        can_repeat = can_go_back if self._keeps else not self._has_emitted
        most = self._repeats(given) if self._is_new else REPEATS
        if can_repeat and not isinstance(error, FailBatch) and self._raised[given] < most:
            self._raised[given] += 1
            self._is_undone = True
        else:
            super().raised(given, error)

    def emit(
        self,
        values: Any,
        anchors: Sequence[TrackedTuple],
        stream: str,
        task: int | None,
        own_time_ms: int | None = None,
    ) -> list[TaskId]:
        self._has_emitted = True
        copies = self._copies
        if copies is not None and len(copies.emitted) >= _MOST_OF_A_CALL:
            self._output.unsent = None
            users = self._users
            call, users.running = users.running, None
            copies.drop()
            users.running = call
        return super().emit(values, anchors, stream, task, own_time_ms)

    def give_out(self) -> None:
        if self._copies is not None:
            self._copies.drop()


class ConcurrentTransactionRunner(_InTransaction, ConcurrentRunner):
    """Runs a task of a bolt, several calls side by side.

    If the bolt keeps something of its batch, no call is repeated.
    """

    def run(self, given: TrackedTuple) -> None:
        if keeps_of_batch(self.bolt):
            count_kept(given, 1)
        super().run(given)

    def carry_out(self, call: Call) -> None:
        """Make the call, and repeat it if it raises. Its emits are carried out when it is over."""
        super().carry_out(call)
        for _ in range(self._repeats(call.given)):
            if not self._begins_again(call):
                return
            super().carry_out(call)

    async def carry_out_async(self, call: Call) -> None:
        await super().carry_out_async(call)
        for _ in range(self._repeats(call.given)):
            if not self._begins_again(call):
                return
            await super().carry_out_async(call)

    def _begins_again(self, call: Call) -> bool:
        passes = not isinstance(call.error, Exception) or isinstance(call.error, FailBatch)
        if passes or call.is_given_up or keeps_of_batch(self.bolt):
            return False
        call.begun_s, call.error = self._clock(), None
        call.noted.clear()
        call.emitted.clear()
        return True


class BatchRunner(TransactionRunner):
    """Runs one task of a batch bolt in one batch. The next batch gets another runner."""

    context: TransactionContext

    def __init__(
        self,
        environment: Environment,
        context: TransactionContext,
        bolt: BaseBolt,
        states: Mapping[str, State] | None,
    ) -> None:
        super().__init__(environment, context, bolt)
        self._states = states
        self._acks, self._holds = True, False
        self._batch_collector = BatchOutputCollector(self)
        self._given: list[TrackedTuple] | None = [] if self._transaction.is_trial else None

    def run(self, given: TrackedTuple) -> None:
        """Give the bolt a tuple. A trial has to know which events a key came with."""
        if self._given is not None:
            self._given.append(given)
        super().run(given)

    @property
    def _shared(self) -> Sequence[Any]:
        return self.context, self._batch_collector, self._transaction.attempt

    def roots_of(self, error: StateValueError) -> tuple[frozenset[int], ...]:
        keys = set(error.keys)
        found: dict[tuple[str, str, int], set[int]] = {}
        for given in self._given or ():
            for place, value in enumerate(given.values):
                if _as_key(value, keys) in keys:
                    tracked = {root.id for root, _ in given.trees() if root.is_tracked}
                    found.setdefault((given.source, given.stream, place), set()).update(tracked)
        return tuple(frozenset(ids) for ids in found.values() if ids)

    def anchors(self) -> Sequence[TrackedTuple]:
        """Return the tuple in process; none in `finish_batch`."""
        call = self._users.call
        return (call,) if isinstance(call, TrackedTuple) and call.owner is self else ()

    def prepare(self, state: Any) -> None:
        """Prepare the bolt. A batch bolt keeps nothing from batch to batch."""
        del state
        bolt: Any = self.bolt
        with self._named("prepare"):
            bolt.prepare(self.context, self._batch_collector, self._transaction.attempt)

    def _commit(self, states: CommitterStates) -> None:
        had = self._outcome.may_have_committed
        self._outcome.may_have_committed = True
        try:
            states.commit()
        except StateValueError:
            # One database rolls back all if it refuses a part; of several, one may have written.
            self._outcome.may_have_committed = had or states.stores > 1
            raise

    def finish_batch(self) -> None:
        """Let the bolt finish its batch. For a committer, write what it changed."""
        if self._states is None:
            super().finish_batch()
            return
        if not self._states:  # what a committer writes by itself is not known here
            self._outcome.may_have_committed = True
        transaction, context = self._transaction, self.context
        place = self._component, context.task
        writer = writer_of(context.topology, transaction, *place)
        states = CommitterStates(
            self._states, writer, lambda group: task_of_group(group, context.tasks)
        )
        failed = len(self._outcome.failures)
        try:
            states.check()
            context.states = {name: states.state(name) for name in self._states}
            super().finish_batch()
            context.states = None
            if len(self._outcome.failures) > failed:
                return
            if transaction.is_trial:
                self._outcome.changes[place] = states.try_out()
                return
            self._commit(states)
        except StateError as error:
            self.finish_raised(error)
        finally:
            context.states = None
            states.close()

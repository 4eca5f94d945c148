"""Which calls of a bolt are made again within a try, with what, and how often; call by call."""

from __future__ import annotations

import contextlib
import copyreg
import json
import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pytest

from sequitur.consumer.topology import (
    FailReason,
    ProcessSettings,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.state import TransactionalState
from sequitur.consumer.topology.tester.in_memory import InMemoryBatch
from sequitur.errors import BoltTimeoutError, FailBatch
from tests.support.transactions import (
    GatherAndPassOn,
    Journal,
    Noting,
    PassOn,
    counts,
    events,
    store_in,
    text,
)
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import BaseBolt, BasicOutputCollector, Tuple
    from sequitur.consumer.topology.engine.executor import Executor
    from sequitur.consumer.topology.engine.task_output import UserCode

_KB = 1 << 10
_503 = ConnectionError("503")


class Keeping(Noting):
    """Gathers the values of a batch, and emits them at its end.

    Args:
        journal: Notes its calls.
        size: How many bytes it has from the beginning.
    """

    def __init__(self, journal: Journal, size: int = 0) -> None:
        super().__init__(journal)
        self.kept = "x" * size

    def pass_on(self, value: Any) -> None:
        """Not yet."""

    def at_end(self) -> None:
        for value in self.values:
            self.collector.emit((self.transaction, value))


class Emitting(Keeping):
    """Emits at once what it is given."""

    def pass_on(self, value: Any) -> None:
        self.collector.emit((self.transaction, value))

    def at_end(self) -> None:
        """It has."""


class Locked(Keeping):
    """Cannot be copied; refuses a batch in which a call has begun and has not ended."""

    open = 0

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.lock = threading.Lock()

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self.open += 1
        super().process(tuple)
        self.open -= 1

    def at_end(self) -> None:
        if self.open:
            raise ValueError(f"{self.open} are open")
        super().at_end()


class Wavering(Keeping):
    """Emits a value at once where it is given the same a second time, and nothing else."""

    def pass_on(self, value: Any) -> None:
        if _calls(self.journal).count(value) > 1:
            self.collector.emit((self.transaction, value))

    def at_end(self) -> None:
        """Nothing is left."""


def _tester(journal: Journal, folder: Path, part: BaseBolt, **settings: Any) -> TransactionTester:
    """Return: part, behind it the function ask, then the committer sum, which passes on."""
    tick_interval = "1 s" if isinstance(part, Ticked) else None
    builder = TransactionalTopologyBuilder("repeats", "spout")
    builder.set_bolt("part", part, tick_interval=tick_interval).local_grouping("spout")
    builder.set_bolt("ask", Asked(journal)).local_grouping("part")
    states = {"count": TransactionalState(store_in(folder), "counts")}
    builder.set_bolt("sum", GatherAndPassOn(journal), states=states).global_grouping("ask")
    builder.set_output("out", key=None, value="value").local_grouping("sum")
    return TransactionTester(builder.build(), ProcessSettings(**settings))


class Asked(PassOn):
    """Passes on what it is given, and fails where the journal plans it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        self.journal.pass_through(f"ask.{text(tuple['value'])}")
        super().process(tuple, collector)


def _values(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _calls(journal: Journal, component: str = "part") -> list[Any]:
    return [one.value for one in journal.of(component, "process")]


def _again(journal: Journal) -> list[int]:
    """Return the values that came another time, in order."""
    seen: set[Any] = set()
    again = []
    for value in _calls(journal):
        if value in seen:
            again.append(int(value))
        seen.add(value)
    return again


_LARGE = 400 * _KB
"""So large that it is copied once within the first eight tuples: as it begins its batch."""


class StatedItself(Keeping):
    """Says what is pickled of it before it is prepared."""

    def __getstate__(self) -> Any:
        return {"journal": self.journal, "kept": ""}


@pytest.mark.promise("state-event-fails-batch")
@pytest.mark.parametrize("kind", [Locked, StatedItself])
def test_a_bolt_without_a_copy_is_run_again_and_its_calls_are_not_repeated(
    kind: type[Keeping], tmp_path: Path
) -> None:
    """It may be in the middle of something; what fails in its second run is left out of a third."""
    journal = Journal()
    journal.faults.update({"part.10": [_503], "part.11": [None, _503]})
    tester = _tester(journal, tmp_path, kind(journal))
    tester.run(events(*_values(13)))
    assert [text(event.value) for event in tester.failed] == ["10", "11"]
    assert len(_calls(journal)) == 13 + 12 + 11
    assert not tester.failed_tries
    assert counts(store_in(tmp_path), "counts") == {str(one): 1 for one in (*range(10), 12)}


class Buffer:
    """Gathers rows, and a copy of it does not have them."""

    def __init__(self) -> None:
        self.rows: list[Any] = []


class StatedEmpty(Buffer):
    def __getstate__(self) -> Any:
        return {"rows": []}


class MadeEmpty(Buffer):
    def __reduce__(self) -> Any:
        return MadeEmpty, ()


class ComesEmpty(Buffer):
    def __setstate__(self, state: Any) -> None:
        self.rows = []


class Registered(Buffer):
    """Somebody has said elsewhere how it is pickled."""


class Tallied(Counter[str]):
    """A counter that has more than its counts: its way of being pickled knows nothing of that."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.rows: list[Any] = []


class Numbered(Buffer):
    """Is not made without a number."""

    def __new__(cls, number: int = -1) -> Self:
        if number < 0:
            raise ValueError("it has no number")
        return super().__new__(cls)

    def __init__(self, _number: int) -> None:
        super().__init__()


copyreg.pickle(Registered, lambda _one: (Registered, ()))


class Buffering(Keeping):
    """Gathers in an object that says itself how it is pickled.

    Args:
        journal: Notes its calls.
        make: Makes the object.
    """

    def __init__(self, journal: Journal, make: Callable[[], Any]) -> None:
        super().__init__(journal)
        self.make = make

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.buffer = self.make()

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self.buffer.rows.append(text(tuple["value"]))
        super().process(tuple)

    def at_end(self) -> None:
        for value in self.buffer.rows:
            self.collector.emit((self.transaction, value))


class Viewing(Keeping):
    """Writes into an array, and reads what it wrote through a view of that."""

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.written = np.zeros(100, np.int64)
        self.seen = self.written[:50]

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        super().process(tuple)
        self.written[int(self.values[-1])] = 1

    def at_end(self) -> None:
        self.values = [str(one) for one in np.flatnonzero(self.seen)]
        super().at_end()


_BUFFERS: dict[str, Callable[[Journal], Keeping]] = {
    one.__name__: partial(Buffering, make=one)
    for one in (StatedEmpty, MadeEmpty, ComesEmpty, Registered, Tallied)
}
_BUFFERS |= {"Numbered": partial(Buffering, make=partial(Numbered, 1)), "a view": Viewing}


@pytest.mark.promise("state-bolt-copied-in-part")
@pytest.mark.parametrize("made", _BUFFERS.values(), ids=_BUFFERS)
def test_a_bolt_loses_nothing_of_what_a_copy_would_not_have(
    made: Callable[[Journal], Keeping], tmp_path: Path
) -> None:
    """It has no copy, so it is run again without the event that failed."""
    journal = Journal()
    journal.faults["part.10"] = [_503]
    tester = _tester(journal, tmp_path, made(journal))
    tester.run(events(*_values(13)))
    assert [text(event.value) for event in tester.failed] == ["10"]
    assert counts(store_in(tmp_path), "counts") == {str(one): 1 for one in (*range(10), 11, 12)}
    assert len(_calls(journal)) == 13 + 12


class Row(NamedTuple):
    """A row."""

    value: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of it."""

    times: int


class Plain(Keeping):
    """Gathers in what a copy has whole."""

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.rows: dict[Any, Any] = defaultdict(deque, {datetime(2024, 1, 1, tzinfo=UTC): deque()})
        self.sums = np.zeros(3)
        self.tally, self.kind, self.seen = Counter[str](), Row, Seen(1)
        self.reason = FailReason.TIMEOUT

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        super().process(tuple)
        self.rows[Decimal(self.values[-1])].append(Row(self.values[-1]))
        self.tally[self.values[-1]] += 1


def test_a_bolt_with_containers_dates_and_arrays_goes_on_from_a_copy(tmp_path: Path) -> None:
    journal = Journal()
    journal.faults["part.10"] = [_503]
    tester = _tester(journal, tmp_path, Plain(journal))
    tester.run(events(*_values(13)))
    assert len(_calls(journal)) < 13 + 12
    assert counts(store_in(tmp_path), "counts") == {str(one): 1 for one in (*range(10), 11, 12)}


@pytest.mark.promise("state-calls-fail-chance")
def test_a_call_is_repeated_seven_times_each_time_that_it_is_made(tmp_path: Path) -> None:
    """Those of its own, and those behind a copy for the sake of another, are not added up."""
    journal = Journal()
    journal.faults["ask.0"] = [_503]  # so part runs again without it
    journal.faults["part.1"] = [None, *[_503] * 5, None, *[_503] * 5, None]
    journal.faults["part.2"] = [None, _503]
    builder = TransactionalTopologyBuilder("repeats", "spout")
    builder.set_bolt("part", Keeping(journal, _LARGE)).local_grouping("spout")
    builder.set_bolt("beside", Emitting(journal)).local_grouping("spout")
    builder.set_bolt("ask", Asked(journal)).local_grouping("beside")
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    made = builder.set_bolt("sum", GatherAndPassOn(journal), states=states)
    made.global_grouping("part").global_grouping("ask")
    tester = TransactionTester(builder.build())
    tester.run(events(*_values(4)))
    assert journal.faults["part.1"] == journal.faults["part.2"] == []
    assert [text(event.value) for event in tester.failed] == ["0"]
    first, again = list("0123"), ["1"] * 6
    assert _calls(journal) == [*first, *again, "2", *again, "2", "3"]


@pytest.mark.parametrize("times", [7, 8])
def test_a_call_that_passed_before_fails_its_event_after_seven_repeats(
    times: int, tmp_path: Path
) -> None:
    """The bolt has nothing of the event then, and is not run again for it."""
    journal = Journal()
    journal.faults.update({"part.3": [_503], "part.1": [None, *[_503] * times]})
    tester = _tester(journal, tmp_path, Keeping(journal, _LARGE))
    tester.run(events(*_values(5)))
    failed = ["3"] if times == 7 else ["1", "3"]
    assert [text(event.value) for event in tester.failed] == failed
    assert journal.finishes_of("part") == [1]


def test_a_call_that_takes_too_long_when_it_is_repeated_is_not_made_again(tmp_path: Path) -> None:
    journal = Journal()
    journal.faults.update({"part.3": [_503], "part.1": [None, BoltTimeoutError(), None]})
    tester = _tester(journal, tmp_path, Keeping(journal, _LARGE), max_attempts=1)
    tester.run(events(*_values(5)))
    reasons = {text(dead.event.value): dead.reason for dead in tester.dead_letters}
    assert reasons == {"1": FailReason.TIMEOUT, "3": FailReason.EXCEPTION}
    assert _again(journal) == [0, 1, 0, 2]


def test_a_bolt_is_given_again_in_order_what_came_before_a_call_that_fails_again(
    tmp_path: Path,
) -> None:
    journal = Journal()
    journal.faults.update({"part.6": [_503], "part.2": [None, _503]})
    tester = _tester(journal, tmp_path, Keeping(journal, _LARGE))
    tester.run(events(*_values(8)))
    assert _again(journal) == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert [text(value) for _, value in tester.records("out")] == list("0123457")


class Weighed:
    """A value that counts how often it is pickled."""

    times = 0

    def __getnewargs__(self) -> tuple[()]:
        Weighed.times += 1
        return ()


class Remembering(PassOn):
    """Counts all that it was given, in a snapshot; keeps what is weighed."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.count = 0

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.weighed = Weighed()

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        self.count += 1
        super().process(tuple, collector)

    def snapshot(self) -> int:
        return self.count

    def restore(self, snapshot: int) -> None:
        self.count = snapshot


@pytest.mark.parametrize("is_again", [False, True])
def test_a_bolt_with_a_snapshot_is_copied_only_where_it_runs_again(
    tmp_path: Path, *, is_again: bool
) -> None:
    """It begins a batch with all it knows, and most batches have no failure."""
    Weighed.times = 0
    journal = Journal()
    journal.faults["ask.3"] = [_503] if is_again else []
    tester = _tester(journal, tmp_path, Remembering(journal))
    tester.run(events(*_values(5)))
    assert len(tester.acked) == 5 - is_again
    assert bool(Weighed.times) is is_again


class Holding(Emitting):
    """Keeps the tuples themselves, and nothing else."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        super().process(tuple)
        self.values = [*self.values[:-1], tuple]


def test_tuples_that_a_bolt_keeps_are_not_copied_with_it(tmp_path: Path) -> None:
    """They have much that could not be copied: it would be run again."""
    journal = Journal()
    wide = [value.ljust(_KB) for value in _values(8)]
    journal.faults[f"part.{wide[7]}"] = [_503]
    tester = _tester(journal, tmp_path, Holding(journal))
    tester.run(events(*wide))
    assert _calls(journal) == wide
    assert len(tester.acked) == 7


class Ticked(Keeping):
    """Passes its ticks through the journal."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if tuple.is_tick:
            self.journal.pass_through("tick")
        else:
            super().process(tuple)


def test_a_tick_is_not_given_again_with_what_came_since_a_copy(tmp_path: Path) -> None:
    journal = Journal()
    tester = _tester(journal, tmp_path, Ticked(journal, _LARGE))
    tester.run(events("a"))
    tester.advance(2)
    journal.faults.update({"tick": [None] * 3, "part.3": [_503]})
    tester.run(events(*_values(5)))
    assert len(journal.faults["tick"]) == 2
    assert _again(journal) == [0, 1, 2]


class CallsBesides(Asked):
    """Notes how often it is called for a value; passes its ticks through the journal."""

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        if tuple.is_tick:
            self.journal.pass_through("tick")
            return
        made.append(text(tuple["value"]))
        super().process(tuple, collector)


class AwaitsBesides(CallsBesides):
    """Likewise in a call that is awaited."""

    async def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # type: ignore[override]  # noqa: A002
        super().process(tuple, collector)


made: list[str] = []
third = threading.Event()
hung: list[threading.Thread] = []
advance: list[Callable[[float], None]] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    made.clear()
    third.clear()


def _behind_a_committer(
    journal: Journal, folder: Path, behind: Any, *, concurrency: int = 1
) -> TransactionTester:
    builder = TransactionalTopologyBuilder("behind", "spout")
    states = {"count": TransactionalState(store_in(folder), "counts")}
    builder.set_bolt("sum", GatherAndPassOn(journal), states=states).global_grouping("spout")
    ask = builder.set_bolt("ask", behind, concurrency=concurrency, tick_interval="1 s")
    ask.local_grouping("sum")
    builder.set_output("out", key=None, value="value").local_grouping("ask")
    return TransactionTester(builder.build())


_REHEARSED = [None]
"""The processing phase gives bolts behind a committer their tuples, too."""


_KINDS = pytest.mark.parametrize(
    ("kind", "concurrency"), [(CallsBesides, 1), (CallsBesides, 3), (AwaitsBesides, 3)]
)


@pytest.mark.promise("state-commit-fails-failbatch", "state-calls-fail-chance")
@_KINDS
@pytest.mark.parametrize("asks", [False, True])
def test_a_call_that_asks_for_another_try_at_its_batch_is_not_repeated(
    kind: type[Asked],
    concurrency: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    asks: bool,
) -> None:
    """What fails in a commit by chance is repeated there."""
    monkeypatch.setattr(InMemoryBatch, "runs_inline", False)
    journal = Journal()
    journal.faults["ask.x"] = [*_REHEARSED, FailBatch("not now") if asks else _503]
    tester = _behind_a_committer(journal, tmp_path, kind(journal), concurrency=concurrency)
    tester.run(events("x"))
    assert len(made) == (2 + 2 if asks else 1 + 2)
    assert [one.detail for one in tester.failed_tries] == (["ask: not now"] if asks else [])
    assert [text(value) for _, value in tester.records("out")] == ["x"]


class Exits(CallsBesides):
    """Leaves its thread."""

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        made.append(text(tuple["value"]))
        if len(made) == 2:
            raise SystemExit
        collector.emit((tuple["transaction"], text(tuple["value"])))


def test_side_by_side_a_call_that_ends_its_thread_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InMemoryBatch, "runs_inline", False)
    tester = _behind_a_committer(Journal(), tmp_path, Exits(Journal()), concurrency=2)
    tester.run(events("x"))
    assert len(made) == 2 + 2
    assert "SystemExit" in tester.failed_tries[0].detail


@pytest.mark.promise("process-bolt-raises-tick")
@_KINDS
def test_a_tick_that_is_refused_is_given_once_more(
    kind: type[Asked], concurrency: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To another copy, and not as calls are repeated: twice in each phase."""
    monkeypatch.setattr(InMemoryBatch, "runs_inline", False)
    journal = Journal()
    tester = _behind_a_committer(journal, tmp_path, kind(journal), concurrency=concurrency)
    tester.run(events("x"))
    tester.advance(2)
    journal.faults["tick"] = [_503] * 9
    tester.run(events("y"))
    assert len(journal.faults["tick"]) == 9 - 2 - 2
    assert not tester.failed_tries


class Hangs(CallsBesides):
    """Fails in its second call, once its third is made."""

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        made.append(text(tuple["value"]))
        if len(made) == 2:
            hung.append(threading.current_thread())
            advance.pop()(60)
            assert third.wait(PATIENCE_S)
            raise _503
        if len(made) == 3:
            third.set()
        collector.emit((tuple["transaction"], text(tuple["value"])))


def test_side_by_side_a_call_that_was_given_up_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its try at the batch is over: what it raises by then is nobody's."""
    monkeypatch.setattr(InMemoryBatch, "runs_inline", False)
    tester = _behind_a_committer(Journal(), tmp_path, Hangs(Journal()), concurrency=2)
    advance.append(tester.advance)
    tester.run(events("x"))
    hung.pop().join(PATIENCE_S)
    assert len(made) == 2 + 2
    assert "took longer than call_timeout" in tester.failed_tries[0].detail


_LOOKED_AT: list[UserCode] = []


@contextlib.contextmanager
def _watched(_batch: InMemoryBatch, executor: Executor) -> Iterator[None]:
    _LOOKED_AT[:] = [executor.user_code]
    yield


class TakesTwentySeconds(CallsBesides):
    """Fails twice in the commit, each time after 20 s."""

    now_s = 0.0

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        made.append(text(tuple["value"]))
        for seconds in (0.0, 20.0):
            TakesTwentySeconds.now_s += seconds
            _LOOKED_AT[0].look(TakesTwentySeconds.now_s, 30.0)
        if len(made) in {2, 3}:
            raise _503
        collector.emit((tuple["transaction"], text(tuple["value"])))


@pytest.mark.promise("state-calls-fail-chance")
def test_a_call_that_is_repeated_has_its_time_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes less than `call_timeout`, and all together take longer."""
    monkeypatch.setattr(InMemoryBatch, "watched", _watched)
    tester = _behind_a_committer(Journal(), tmp_path, TakesTwentySeconds(Journal()))
    tester.run(events("x"))
    assert len(made) == 1 + 3
    assert not tester.failed_tries


looks = threading.Semaphore(0)


class TakesTwentySecondsBesides(CallsBesides):
    """Likewise; its last call lasts until it was looked for calls that overrun."""

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        made.append(text(tuple["value"]))
        advance[0](20)
        if len(made) in {2, 3}:
            raise _503
        while looks.acquire(blocking=False):
            pass
        for _ in range(3):
            assert looks.acquire(timeout=PATIENCE_S)
        collector.emit((tuple["transaction"], text(tuple["value"])))


class AwaitsTwentySeconds(TakesTwentySecondsBesides):
    """Likewise in a call that is awaited."""

    async def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # type: ignore[override]  # noqa: A002
        super().process(tuple, collector)


def _telling_looks(batch: InMemoryBatch) -> Callable[[], float]:
    def now_s() -> float:
        if threading.current_thread() is threading.main_thread():
            looks.release()
        return batch.now_s()

    return now_s


@pytest.mark.promise("state-calls-fail-chance")
@pytest.mark.parametrize("kind", [TakesTwentySecondsBesides, AwaitsTwentySeconds])
def test_side_by_side_a_call_that_is_repeated_has_its_time_from_the_beginning(
    kind: type[CallsBesides], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InMemoryBatch, "runs_inline", False)
    monkeypatch.setattr(InMemoryBatch, "clock", property(_telling_looks))
    tester = _behind_a_committer(Journal(), tmp_path, kind(Journal()), concurrency=2)
    advance[:] = [tester.advance]
    tester.run(events("x"))
    advance.clear()
    assert len(made) == 1 + 3
    assert not tester.failed_tries


class Growing(GatherAndPassOn):
    """Emits all values so far, always in the same list."""

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.so_far: list[Any] = []

    def pass_on(self, value: Any) -> None:
        self.so_far.append(value)
        self.collector.emit((self.transaction, self.so_far))


def test_readers_get_what_was_emitted_and_not_what_the_bolt_makes_of_it_later(
    tmp_path: Path,
) -> None:
    journal = Journal()
    builder = TransactionalTopologyBuilder("readers", "spout")
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    builder.set_bolt("sum", Growing(journal), states=states).global_grouping("spout")
    builder.set_bolt("ask", PassOn()).local_grouping("sum")
    builder.set_output("out", key=None, value="value").local_grouping("ask")
    tester = TransactionTester(builder.build())
    tester.run(events(*_values(12)))
    found = [json.loads(value or b"") for _, value in tester.records("out")]
    assert found == [_values(count) for count in range(1, 13)]


class Stammering(Emitting):
    """Emits at once what it is given, and fails then where the journal plans it."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        value = text(tuple["value"])
        self._note("process", value, tuple["transaction"])
        self.values.append(value)
        self.pass_on(value)
        self.journal.pass_through(f"{self.context.component}.{value}")


@pytest.mark.promise("state-event-fails-batch")
def test_what_a_bolt_emitted_before_it_raised_is_undone(tmp_path: Path) -> None:
    """Nobody has it by then, so the bolt is not run again."""
    journal = Journal()
    journal.faults["part.30"] = [_503]
    tester = _tester(journal, tmp_path, Stammering(journal))
    tester.run(events(*_values(60)))
    assert len(_calls(journal)) < 60 + 30
    assert journal.finishes_of("part") == [1]
    assert [text(event.value) for event in tester.failed] == ["30"]
    values = [one for one in _values(60) if one != "30"]
    assert [text(value) for _, value in tester.records("out")] == values
    assert counts(store_in(tmp_path), "counts") == dict.fromkeys(values, 1)


def test_what_a_bolt_emits_when_it_is_given_a_tuple_again_counts(tmp_path: Path) -> None:
    """And not what it emitted for that before, or that it emitted nothing."""
    journal = Journal()
    journal.faults["part.3"] = [_503]
    tester = _tester(journal, tmp_path, Wavering(journal, _LARGE))
    tester.run(events(*_values(5)))
    assert _again(journal) == [0, 1, 2]
    assert counts(store_in(tmp_path), "counts") == dict.fromkeys("012", 1)


class Flooding(Stammering):
    """Emits very much for what then fails; nobody reads it."""

    streams: Mapping[str, Sequence[str]] = MappingProxyType({"unread": ("transaction", "number")})

    def pass_on(self, value: Any) -> None:
        super().pass_on(value)
        for number in range(70_000 if value == "3" else 0):
            self.collector.emit((self.transaction, number), "unread")


def test_a_call_that_emits_more_than_memory_is_to_hold_is_run_again(tmp_path: Path) -> None:
    journal = Journal()
    journal.faults["part.3"] = [_503]
    tester = _tester(journal, tmp_path, Flooding(journal))
    tester.run(events(*_values(5)))
    assert journal.finishes_of("part") == [1, 1]
    assert counts(store_in(tmp_path), "counts") == dict.fromkeys("0124", 1)


class Streaming(Emitting):
    """Emits much for each value; nobody reads most of it."""

    streams: Mapping[str, Sequence[str]] = MappingProxyType({"unread": ("transaction", "number")})

    def pass_on(self, value: Any) -> None:
        super().pass_on(value)
        for number in range(1_500):
            self.collector.emit((self.transaction, number), "unread")


def test_a_bolt_that_emits_much_is_copied_before_too_much_waits(tmp_path: Path) -> None:
    """It is so large that its calls alone are no reason to."""
    journal, values = Journal(), _values(50)
    journal.faults["part.49"] = [_503]
    tester = _tester(journal, tmp_path, Streaming(journal, 60 * 16 * _KB))
    tester.run(events(*values))
    assert journal.finishes_of("part") == [1]
    assert _again(journal) == [48]
    assert counts(store_in(tmp_path), "counts") == dict.fromkeys(values[:-1], 1)


def test_what_always_fails_behind_a_committer_that_emits_at_once_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    """It fails in the processing phase: so the batch is committed without it."""
    journal, values = Journal(), _values(40)
    journal.faults["ask.39"] = [_503] * 40
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    builder = TransactionalTopologyBuilder("repeats", "spout")
    builder.set_bolt("sum", GatherAndPassOn(journal), states=states).global_grouping("spout")
    builder.set_bolt("ask", Asked(journal)).local_grouping("sum")
    tester = TransactionTester(builder.build(), ProcessSettings(max_attempts=2))
    tester.run(events(*values))
    tester.retry_all()
    assert [text(one.event.value) for one in tester.dead_letters] == values[-1:]
    assert not tester.failed_tries
    assert counts(store_in(tmp_path), "counts") == dict.fromkeys(values[:-1], 1)

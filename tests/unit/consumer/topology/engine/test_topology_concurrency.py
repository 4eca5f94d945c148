"""Calls of a bolt run side by side, in threads or on an event loop; those of a key one by one."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    Bolt,
    EventValues,
    FailReason,
    Ordering,
    TopologyBuilder,
    bolt,
)
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.plan import Placement, Rules, random_ids
from sequitur.consumer.topology.settling.root import Root
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from sequitur.consumer.topology import Event, Topology, Tuple

_CALLS = 3
_LONG_S = PATIENCE_S
"""Longer than anything here takes; who waits for so long has found a defect."""


@dataclass
class Scene:
    """What the bolts of a test meet at: they are copies, and find it by its name here."""

    now_s: float = 0.0
    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(_CALLS))
    called: list[bytes | None] = field(default_factory=list)
    busy: dict[bytes | None, threading.Lock] = field(
        default_factory=lambda: defaultdict(threading.Lock)
    )
    release: threading.Event = field(default_factory=threading.Event)
    overran: threading.Event = field(default_factory=threading.Event)
    stuck: list[threading.Thread] = field(default_factory=list)
    waiting: int = 0
    met: asyncio.Event = field(default_factory=asyncio.Event)
    concluded_in: set[int] = field(default_factory=set)


_scene = Scene()


@pytest.fixture(autouse=True)
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene()
    monkeypatch.setattr(f"{__name__}._scene", made)
    yield made
    made.release.set()


@bolt
def meet(event: Event) -> Any:
    """Return once so many calls are here at the same time."""
    _scene.barrier.wait(_LONG_S)
    return [event.value]


@bolt
async def meet_async(event: Event) -> Any:
    await _meeting()
    return [event.value]


@bolt
async def meet_async_generator(event: Event) -> AsyncIterator[Any]:
    await _meeting()
    yield event.value


async def _meeting() -> None:
    _scene.waiting += 1
    if _scene.waiting == _CALLS:
        _scene.met.set()
    await asyncio.wait_for(_scene.met.wait(), _LONG_S)


class MeetAsync(Bolt):
    """A bolt whose `process` is async, and acks by itself."""

    fields = ("value",)

    async def process(self, tuple: Tuple) -> None:  # noqa: A002
        await _meeting()
        self.collector.emit((tuple["value"],), anchors=tuple)
        self.collector.ack(tuple)


@bolt
def one_by_one(event: Event) -> Any:
    """Raise if another call of the same key is going on."""
    if not _scene.busy[event.key].acquire(blocking=False):
        raise AssertionError(f"two calls of {event.key!r}")
    _scene.called.append(event.value)
    _scene.busy[event.key].release()
    return [event.value]


@bolt
def refuse_bad(event: Event) -> Any:
    _scene.called.append(event.value)
    if event.value == b"bad":
        raise ValueError("bad")
    return [event.value]


@bolt
def stick(event: Event) -> Any:
    """Overrun with one value; with another let that call go, and wait until it has."""
    if event.value == b"stuck":
        _scene.stuck.append(threading.current_thread())
        _scene.now_s += 31
        _scene.overran.set()
        _scene.release.wait(_LONG_S)
    elif event.value == b"after":
        _scene.release.set()
        _scene.stuck[0].join(_LONG_S)
    return [event.value]


@bolt
def take_a_second(event: Event) -> Any:
    _scene.now_s += 1
    return [event.value]


@bolt
async def stick_async(event: Event) -> Any:
    """Overrun with one value, until another comes."""
    if event.value == b"stuck":
        _scene.now_s += 31
        await asyncio.wait_for(_scene.met.wait(), _LONG_S)
    else:
        _scene.met.set()
    return [event.value]


class AcksTwice(Bolt):
    """Acks its tuples twice."""

    fields = ("value",)

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.ack(tuple)
        self.collector.ack(tuple)


@bolt
def note_thread(given: Tuple) -> Any:
    del given
    _scene.concluded_in.add(threading.get_ident())


def _topology(made: Any, concurrency: int = _CALLS, grouping: str | None = None) -> Topology:
    builder = TopologyBuilder("side by side", config={"some": "thing"})
    builder.set_spout("events")
    declarer = builder.set_bolt("work", made, concurrency=concurrency)
    if grouping is None:
        declarer.local_grouping("events")
    else:
        declarer.fields_grouping("events", grouping)
    builder.set_bolt("behind", note_thread).local_grouping("work")
    builder.set_output("out", key=None).local_grouping("work")
    return builder.build()


class Run:
    """An executor, and what came of its events."""

    def __init__(self, topology: Topology, ordering: Ordering = Ordering.KEY) -> None:
        self.written: list[bytes | None] = []
        self.roots: list[Root] = []
        tasks = dict.fromkeys(topology.components, 1)
        self.executor = Executor(
            topology,
            Placement(tasks, dict.fromkeys(tasks, (0,))),
            Rules(ordering=ordering, call_timeout_s=30),
            clock=lambda: _scene.now_s,
            next_id=random_ids(0),
            write=lambda _output, record: self.written.append(record[2]),
        )

    def feed(self, key: bytes | None, value: bytes) -> None:
        number = len(self.roots) + 1
        event = EventValues(key, value, (), number, "t", 0, number, 0)
        self.roots.append(Root(number, event))
        self.executor.feed(self.roots[-1], event)

    def finish(self) -> None:
        """End the batch, and wait for the threads."""
        self.executor.finish()
        self.executor.close()
        for thread in self.executor._pool._threads:
            thread.join(_LONG_S)

    @property
    def reasons(self) -> list[FailReason | None]:
        return [root.failure.reason if root.failure else None for root in self.roots]


def _run(
    topology: Topology,
    events: Iterable[tuple[bytes | None, bytes]],
    ordering: Ordering = Ordering.KEY,
) -> Run:
    run = Run(topology, ordering)
    for key, value in events:
        run.feed(key, value)
    run.finish()
    return run


@pytest.mark.parametrize("made", [meet, meet_async, meet_async_generator, MeetAsync()])
def test_calls_of_different_keys_run_side_by_side(made: Any) -> None:
    """None returns before all are there; what they emit is anchored, and acked."""
    run = _run(_topology(made), [(b"a", b"1"), (b"b", b"2"), (None, b"3")])
    assert run.reasons == [None, None, None]
    assert sorted(value or b"" for value in run.written) == [b"1", b"2", b"3"]
    result = run.executor.result()
    assert (result.acked, len(result.unfinished)) == (3, 0)


def test_calls_of_a_key_run_one_by_one_and_in_order(scene: Scene) -> None:
    """However many could run side by side."""
    events = [(b"k%d" % (number % 5), b"%d" % number) for number in range(200)]
    run = _run(_topology(one_by_one), events)
    assert set(run.reasons) == {None}
    for key in range(5):
        called = [int(value or b"") for value in scene.called if int(value or b"") % 5 == key]
        assert called == list(range(key, 200, 5))


def test_a_fields_grouping_says_what_a_key_is(scene: Scene) -> None:
    """Equal values stay in order, though the events have no key; also values without a hash."""
    events = [(None, b"%d" % (number % 2)) for number in range(50)]
    run = _run(_topology(one_by_one, grouping="value"), events)
    assert (set(run.reasons), len(scene.called)) == ({None}, 50)
    run = _run(_topology(one_by_one, grouping="headers"), [(b"a", b"1"), (b"a", b"2")])
    assert (run.reasons, scene.called[-2:]) == ([None, None], [b"1", b"2"])


def test_what_a_call_said_is_done_by_the_executors_thread(scene: Scene) -> None:
    """So that nothing of a tree is shared between threads."""
    _run(_topology(meet), [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    assert scene.concluded_in == {threading.get_ident()}


def test_an_exception_fails_the_event_and_its_key_is_held(scene: Scene) -> None:
    """Later tuples of the key are not given to the bolt; others are."""
    run = _run(_topology(refuse_bad), [(b"a", b"bad"), (b"a", b"2"), (b"a", b"3"), (b"b", b"4")])
    assert run.reasons == [FailReason.EXCEPTION, None, None, None]
    assert [root.is_held for root in run.roots] == [False, True, True, False]
    assert sorted(value or b"" for value in scene.called) == [b"4", b"bad"]
    failure = run.roots[0].failure
    assert failure is not None
    assert "ValueError: bad" in failure.detail
    assert failure.path == ("events", "work")


@pytest.mark.promise("process-call-bolt-hangs")
def test_a_call_that_overruns_fails_and_its_ack_is_late(scene: Scene) -> None:
    """It is counted once; another thread takes its place, and the key's next call goes on."""
    events = [(b"a", b"stuck"), (b"a", b"after")]
    run = _run(_topology(stick, concurrency=2), events, Ordering.NONE)
    assert run.reasons == [FailReason.TIMEOUT, None]
    assert run.written == [b"after"]
    assert run.executor.result().late_acks == 1
    assert not scene.stuck[0].is_alive()


@pytest.mark.promise("process-call-bolt-hangs")
def test_a_call_is_given_up_although_others_keep_ending(scene: Scene) -> None:
    """It is not waited for until nothing else happens."""
    run = Run(_topology(stick, concurrency=2))
    run.feed(b"a", b"stuck")
    assert scene.overran.wait(_LONG_S)
    run.feed(b"b", b"quick")
    pool = run.executor._pool
    pool.complete_some()
    assert run.reasons == [FailReason.TIMEOUT, None]
    scene.release.set()
    run.finish()
    assert run.written == [b"quick"]


@pytest.mark.promise("process-call-bolt-hangs")
def test_waiting_for_its_turn_is_not_counted(scene: Scene) -> None:
    """Fifty calls of a second each, one behind the other, take none of their trees too long."""
    run = _run(_topology(take_a_second, concurrency=2), [(b"a", b"1")] * 50)
    assert scene.now_s == 50
    assert set(run.reasons) == {None}


def test_a_call_that_waits_for_a_thread_is_not_made_once_its_event_is_held(scene: Scene) -> None:
    """Though the calls' own keys differ: by the grouping here, by the event there."""
    topology = _topology(refuse_bad, concurrency=2, grouping="value")
    events = [(b"a", b"bad"), *((b"a", b"%d" % number) for number in range(20))]
    run = _run(topology, events)
    assert [root.is_held for root in run.roots] == [False, *([True] * 20)]
    assert len(scene.called) < 1 + 20


@pytest.mark.promise("process-call-bolt-hangs")
def test_an_async_call_that_overruns_fails() -> None:
    events = [(b"a", b"stuck"), (b"a", b"after")]
    run = _run(_topology(stick_async, concurrency=2), events, Ordering.NONE)
    assert run.reasons == [FailReason.TIMEOUT, None]
    assert run.written == [b"after"]


def test_a_double_ack_fails_its_tuple() -> None:
    """As soon as what the call said is done."""
    run = _run(_topology(AcksTwice()), [(b"a", b"1")])
    failure = run.roots[0].failure
    assert failure is not None
    assert "bolt 'work' acked <tuple of events: key=b'a'" in failure.detail
    assert "acked already" in failure.detail


def test_only_so_many_calls_wait() -> None:
    """Events are not given out while there are more: memory stays bounded."""
    events = [(None, b"%d" % number) for number in range(3_000)]
    run = _run(_topology(one_by_one, concurrency=2), events)
    assert run.executor.result().acked == 3_000
    assert len(run.written) == 3_000

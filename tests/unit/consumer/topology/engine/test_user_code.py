"""A call that overruns is ended in the user's code only, wherever the timer's signal lands."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    BatchBolt,
    Bolt,
    EventValues,
    FailReason,
    Ordering,
    TopologyBuilder,
    bolt,
)
from sequitur.consumer.topology.engine import plan, runner
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.plan import Placement, Rules, random_ids
from sequitur.consumer.topology.engine.runner import Runner
from sequitur.consumer.topology.engine.task_output import UserCode
from sequitur.consumer.topology.settling.root import Root
from sequitur.errors import BoltTimeoutError
from sequitur.pipelines.topology import output_files
from sequitur.pipelines.topology.output_files import OutputFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Event, Topology, Tuple

_OURS = (
    "consumer/topology/",
    "pipelines/topology/files.py",
    "pipelines/topology/output_files.py",
    "pipelines/store/part_files.py",
)
_TIMEOUT_S = 30.0
_EVENTS = 2


@bolt(fields=("value",))
def twice(event: Event) -> Iterator[tuple[bytes]]:
    yield (event.value or b"",)
    yield (event.value or b"",)


class Pass(BasicBolt):
    """Passes on what it is given."""

    fields = ("value",)

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        collector.emit((tuple["value"],))


class Hold(BatchBolt):
    """Holds its tuples, and passes them on at the end of the batch."""

    fields = ("value",)

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.held: list[Tuple] = []

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.held.append(tuple)

    def finish_batch(self) -> None:
        for one in self.held:
            self.collector.emit((one["value"],), one)
            self.collector.ack(one)
        self.held.clear()


class Refuse(Bolt):
    """Fails the last event, and acks the others."""

    fields = ()

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple["value"] == b"%d" % (_EVENTS - 1):
            self.collector.fail(tuple)
        else:
            self.collector.ack(tuple)


def _topology() -> Topology:
    """Functions and collectors, tuples and outputs, calls and the end of a batch."""
    builder = TopologyBuilder("all ways")
    builder.set_spout("events")
    builder.set_bolt("twice", twice).local_grouping("events")
    builder.set_bolt("pass", Pass()).local_grouping("twice")
    builder.set_bolt("hold", Hold()).local_grouping("events")
    builder.set_bolt("refuse", Refuse()).local_grouping("events")
    builder.set_output("direct", key=None).local_grouping("twice")
    builder.set_output("passed", key=None).local_grouping("pass")
    builder.set_output("held", key=None).local_grouping("hold")
    return builder.build()


_TOPOLOGY = _topology()
_OUTPUTS = {"direct": 2, "passed": 2, "held": 1}
"""Of each event, so many records."""


class _Run:
    """A batch, in which `at_line` is called before each line of Python."""

    def __init__(self, folder: Path, at_line: Callable[[UserCode, str, int], None]) -> None:
        for name in _OUTPUTS:
            (folder / name).mkdir(parents=True)
        self.files = OutputFiles(folder, {name: (name, 1) for name in _OUTPUTS}, itertools.count())
        tasks = dict.fromkeys(_TOPOLOGY.components, 1)
        self.executor = Executor(
            _TOPOLOGY,
            Placement(tasks, dict.fromkeys(tasks, (0,))),
            Rules(ordering=Ordering.NONE, call_timeout_s=_TIMEOUT_S),
            clock=lambda: 0.0,
            next_id=random_ids(0),
            write=self.files.write,
        )
        self.roots = [
            Root(number + 1, EventValues(None, b"%d" % number, (), number, "t", 0, number, 0))
            for number in range(_EVENTS)
        ]
        users = self.executor.user_code

        def trace(frame: Any, event: str, _arg: Any) -> Any:
            name = frame.f_code.co_filename
            if not any(ours in name for ours in (*_OURS, __file__)) or "engine/environment" in name:
                return None
            if event == "line":
                at_line(users, name, frame.f_lineno)
            return trace

        sys.settrace(trace)
        try:
            for root in self.roots:
                self.executor.feed(root, root.event)
            self.executor.finish()
        finally:
            sys.settrace(None)
        shown = self.files.close()
        self.rows = Counter(
            (name, offset)
            for name, file in shown.items()
            if file is not None
            for offset in pq.read_table(str(file))["offset"].to_pylist()
        )

    @property
    def was_ended(self) -> bool:
        failures = [root.failure for root in self.roots if root.failure is not None]
        is_timeout = any(failure.reason is FailReason.TIMEOUT for failure in failures)
        return is_timeout or bool(self.executor.result().finish_failures)

    def check(self) -> None:
        """Nothing that was emitted is missing, nor doubled; and each event is settled."""
        result = self.executor.result()
        assert self.rows.total() == result.emitted == self.files.count
        settled = [one.root for one in result.unfinished]
        assert result.acked + len(settled) == _EVENTS
        for root in self.roots:
            if root not in settled:
                assert root.value == 0
                wrote = {name: self.rows[name, root.event.offset] for name in _OUTPUTS}
                assert wrote == _OUTPUTS, root
        reasons = {root.failure.reason for root in settled if root.failure is not None}
        assert reasons <= {FailReason.TIMEOUT, FailReason.NEVER_ACKED, FailReason.FAILED}


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are written, ids drawn and tuples followed in the middle of calls."""
    monkeypatch.setattr(output_files, "_RECORDS_AT_ONCE", 2)
    monkeypatch.setattr(plan, "_IDS_AT_ONCE", 1)
    monkeypatch.setattr(runner, "_FOLLOWED_AT", -4)  # each yield, whatever waits


@pytest.mark.test_all
@pytest.mark.promise("process-call-found-overrun")
@pytest.mark.slow
@pytest.mark.parametrize("is_last", [False, True])
def test_a_signal_on_any_line_loses_no_output(tmp_path: Path, *, is_last: bool) -> None:
    """It raises in the user's code, or on the way back there; never in the middle of our work."""
    lines: Counter[tuple[str, int]] = Counter()
    _Run(tmp_path / "whole", lambda _users, *line: lines.update([line])).check()
    ended = 0
    for number, (line, times) in enumerate(lines.items()):
        left = times if is_last else 1

        def at_line(users: UserCode, *here: Any, line: Any = line) -> None:
            nonlocal left
            users.look(0.0, _TIMEOUT_S)
            if here == line:
                left -= 1
                if left == 0:
                    users.look(_TIMEOUT_S, _TIMEOUT_S)

        run = _Run(tmp_path / str(number), at_line)
        run.check()
        ended += run.was_ended
    assert any("topology/files" in name for name, _ in lines), "no record was written"
    assert any("engine/plan" in name for name, _ in lines), "no ids were drawn"
    assert _line_of(Runner._follow) in lines, "nothing was followed in the middle of a call"
    assert 10 < ended < len(lines)


@pytest.mark.promise("process-call-found-overrun")
def test_a_call_that_overran_in_our_code_is_ended_on_the_way_back() -> None:
    users = UserCode()
    call = users.call = object()
    users.look(0.0, _TIMEOUT_S)
    users.look(_TIMEOUT_S, _TIMEOUT_S)
    with pytest.raises(BoltTimeoutError):
        users.go_on(call)
    users.go_on(call)
    users.look(100.0, _TIMEOUT_S)
    users.look(100.0 + _TIMEOUT_S, _TIMEOUT_S + 1)
    users.call = later = object()
    users.go_on(later)
    assert users.running is later


def _line_of(function: Callable[..., Any]) -> tuple[str, int]:
    code = function.__code__
    return code.co_filename, code.co_firstlineno + 2


@pytest.mark.promise("process-call-yields-end")
def test_a_call_overruns_by_its_own_time() -> None:
    """Not by that of those which run while it is in the middle of something."""
    users = UserCode()
    outer, inner = object(), object()
    users.call = users.running = outer
    users.look(0.0, _TIMEOUT_S)
    for number in range(29):
        users.running = None
        users.leave()
        users.call = users.running = inner
        users.look(number + 0.5, _TIMEOUT_S)
        users.look(number + 0.9, _TIMEOUT_S)
        users.come_back()
        users.go_on(outer)
        users.look(number + 1, _TIMEOUT_S)  # 0.1 s of them were its own
    with pytest.raises(BoltTimeoutError):
        users.look(29.0 + 27.5, _TIMEOUT_S)


@pytest.mark.promise("process-call-bolt-hangs")
def test_a_bolt_that_goes_on_is_interrupted_again() -> None:
    """It took the exception for one of its own; it is given as long as the first time."""
    users = UserCode()
    users.call = users.running = object()
    users.look(0.0, _TIMEOUT_S)
    for now_s in (30.0, 60.0):
        with pytest.raises(BoltTimeoutError):
            users.look(now_s, _TIMEOUT_S)
        users.look(now_s + 29.0, _TIMEOUT_S)


@pytest.mark.promise("process-call-bolt-hangs")
def test_a_tuple_without_values_is_seen_like_any_other() -> None:
    """It has the length 0, and its call is ended all the same."""

    class Empty:
        def __len__(self) -> int:
            return 0

    users = UserCode()
    users.call = users.running = Empty()
    users.look(0.0, _TIMEOUT_S)
    with pytest.raises(BoltTimeoutError):
        users.look(_TIMEOUT_S, _TIMEOUT_S)


@bolt
def cancel(event: Event) -> None:
    del event
    raise asyncio.CancelledError


@bolt
async def cancel_async(event: Event) -> None:
    del event
    raise asyncio.CancelledError


@pytest.mark.promise("process-bolt-calls-sys")
@pytest.mark.parametrize(("made", "concurrency"), [(cancel, 1), (cancel, 2), (cancel_async, 2)])
def test_whatever_a_bolt_raises_fails_its_event(made: Any, concurrency: int) -> None:
    """Also what is no `Exception`: neither the task ends for it, nor a time-out is waited for."""
    builder = TopologyBuilder("cancelled")
    builder.set_spout("events")
    builder.set_bolt("work", made, concurrency=concurrency).local_grouping("events")
    tasks = {"events": 1, "work": 1}
    executor = Executor(
        builder.build(),
        Placement(tasks, dict.fromkeys(tasks, (0,))),
        Rules(),
        clock=lambda: 0.0,
        next_id=random_ids(0),
        write=lambda *_: None,
    )
    root = Root(1, EventValues(b"k", b"v", (), 0, "t", 0, 0, 0))
    executor.feed(root, root.event)
    executor.finish()
    executor.close()
    assert root.failure is not None
    assert root.failure.reason is FailReason.EXCEPTION
    assert "CancelledError" in root.failure.detail

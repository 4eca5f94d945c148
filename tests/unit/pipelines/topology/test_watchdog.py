"""Calls that hang are ended, whatever a bolt does with the signals of its process."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    CustomStreamGrouping,
    EventValues,
    FailReason,
    TopologyBuilder,
    bolt,
)
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.plan import Placement, Rules, random_ids
from sequitur.consumer.topology.settling.root import Root
from sequitur.pipelines.topology.watchdog import ending_overrun_calls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.consumer.topology import Event, Topology, Tuple

_TIMEOUT_S = 0.2
_followed: list[bytes] = []


@pytest.fixture
def alarm() -> Iterator[None]:
    handler, timer = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)  # the test run's own time limit


def _failures(made: Any, values: list[bytes]) -> list[FailReason | None]:
    """Why events failed that a bolt was given."""
    builder = TopologyBuilder("watched")
    builder.set_spout("events")
    builder.set_bolt("work", made).local_grouping("events")
    return _failures_in(builder.build(), values)


def _failures_in(
    topology: Topology, values: list[bytes], elsewhere: str = ""
) -> list[FailReason | None]:
    """Why events failed in a topology, one component of which may run elsewhere."""
    tasks = {name: one.parallelism or 1 for name, one in topology.components.items()}
    here = {name: range(count) for name, count in tasks.items() if name != elsewhere}
    clock = iter(range(1_000_000))
    executor = Executor(
        topology,
        Placement(tasks, here),
        Rules(call_timeout_s=1e9),
        clock=lambda: next(clock) * 1e-6,
        next_id=random_ids(0),
        write=lambda *_: None,
        send=lambda *_: None,
    )
    roots = [
        Root(number + 1, EventValues(None, value, (), number, "t", 0, number, 0))
        for number, value in enumerate(values)
    ]
    with ending_overrun_calls(executor, _TIMEOUT_S):
        for root in roots:
            executor.feed(root, root.event)
        executor.finish()
    executor.close()
    return [None if root.failure is None else root.failure.reason for root in roots]


def _wait_for_ever() -> None:
    threading.Event().wait()


@bolt
def takes_the_alarm(event: Event) -> None:
    """Use SIGALRM for itself, as libraries do, then hang."""
    if event.value == b"take":
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    elif event.value == b"ignore":
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.alarm(0)
    elif event.value == b"hang":
        _wait_for_ever()


@bolt
def without_end(event: Event) -> Iterator[tuple[bytes]]:
    yield (event.value or b"",)
    while event.value == b"endless":
        yield (b"more",)


@bolt(fields=())
def follow(given: Tuple) -> None:
    _followed.append(given["value"])


@pytest.mark.promise("process-call-yields-end")
def test_a_generator_without_end_is_ended_while_others_are_given_what_it_yields() -> None:
    """By the time that it takes itself; so a great many come to the bolt behind it."""
    _followed.clear()
    builder = TopologyBuilder("endless")
    builder.set_spout("events")
    builder.set_bolt("work", without_end).local_grouping("events")
    builder.set_bolt("follow", follow).local_grouping("work")
    found = _failures_in(builder.build(), [b"good", b"endless", b"good"])
    assert found == [None, FailReason.TIMEOUT, None]
    assert len(_followed) > 1_000


@pytest.mark.promise("process-bolt-uses-sigalrm")
@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("how", [b"take", b"ignore"])
def test_a_bolt_that_takes_the_alarm_is_watched_all_the_same(how: bytes) -> None:
    """The alarm is the bolt's own: the watchdog has a signal that nobody uses."""
    found = _failures(takes_the_alarm, [how, b"hang", b"good", b"hang"])
    assert found == [None, FailReason.TIMEOUT, None, FailReason.TIMEOUT]


@pytest.mark.promise("process-bolt-uses-sigalrm")
@pytest.mark.parametrize("hangs", [True, False])
def test_a_bolt_that_takes_all_signals_costs_its_process_if_it_hangs(*, hangs: bool) -> None:
    """A call that overruns ends the process; one that does not is left alone, however long."""
    code = f"""
        import signal, time
        from sequitur.consumer.topology import bolt
        from sequitur.pipelines.topology import watchdog
        from tests.unit.pipelines.topology.test_watchdog import _failures, _wait_for_ever

        watchdog._LAST_RESORT = 0
        watchdog._LAST_RESORT_S = 0.5

        @bolt
        def takes_all(event):
            if event.value == b"take":
                for one in signal.valid_signals() - {{signal.SIGKILL, signal.SIGSTOP}}:
                    try:
                        signal.signal(one, signal.SIG_IGN)
                    except OSError:
                        pass
            elif event.value == b"hang":
                _wait_for_ever()
            else:
                time.sleep(0.02)

        found = _failures(takes_all, [b"take", *[b"good"] * 100, *[b"hang"] * {hangs:d}])
        assert found == [None] * 101, found
        print("all done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ("all done" in done.stdout) is not hangs, done.stderr
    assert (done.returncode != 0) is hangs, done.stderr
    assert ("_wait_for_ever" in done.stderr) is hangs


@pytest.mark.promise("process-bolt-uses-sigalrm")
@pytest.mark.usefixtures("alarm")
def test_nothing_of_the_watchdog_is_left_behind() -> None:
    """Neither a thread nor a timer; the alarm is not touched."""
    threads, handler = threading.enumerate(), signal.getsignal(signal.SIGALRM)
    assert _failures(takes_the_alarm, [b"good"]) == [None]
    assert set(threading.enumerate()) <= set(threads)  # one of another test may end meanwhile
    assert signal.getsignal(signal.SIGALRM) == handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class OddGrouping(CustomStreamGrouping):
    """Hangs, or raises what is no `Exception`, where the value says so."""

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        del task
        if b"hang" in values:
            _wait_for_ever()
        if b"raise" in values:
            raise SystemExit("odd")
        return (1,)


@bolt(fields=("value",))
def pass_value(given: Tuple) -> Iterator[Any]:
    yield given["value"]


@bolt
def take(given: Tuple) -> None:
    """Do nothing with it."""


@pytest.mark.promise("process-grouping-user-raises")
@pytest.mark.parametrize("elsewhere", ["", "work"], ids=["here", "elsewhere"])
@pytest.mark.parametrize("concurrency", [None, 1, 2], ids=["of events", "of a bolt", "in threads"])
def test_a_grouping_that_hangs_or_raises_fails_the_event(
    concurrency: int | None, elsewhere: str
) -> None:
    """Whoever emitted the tuple; all other events go on."""
    builder = TopologyBuilder("grouped")
    builder.set_spout("events")
    if concurrency is not None:
        builder.set_bolt("first", pass_value, concurrency=concurrency).local_grouping("events")
    source = "events" if concurrency is None else "first"
    builder.set_bolt("work", take, 2).custom_grouping(source, OddGrouping())
    values = [b"good", b"hang", b"raise", b"hang", b"good"]
    failed = [FailReason.TIMEOUT, FailReason.EXCEPTION, FailReason.TIMEOUT]
    assert _failures_in(builder.build(), values, elsewhere) == [None, *failed, None]

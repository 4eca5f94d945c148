"""The executor by itself: what an event costs on its way through a topology, beside its handlers.

    python -m benchmarks.executor

A chain of two bolts and an output, all in one process, with handlers that do next to nothing: what
is measured is tuples, edges, acks and the emission of one output an event. Once with every event
tracked, once with none. The best of several rounds counts, in a process of its own and with the
garbage collector off, so that the figure is that of the code.

Prints a table; `measure` gives the figures as a list of name, value, unit.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import print_figures
from sequitur.consumer.topology import EventValues, TopologyBuilder, bolt
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.plan import Placement, Rules, random_ids
from sequitur.consumer.topology.settling.root import Root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Topology, Tuple

EVENTS: Final = 200_000
_KEYS: Final = 100
_ROUNDS: Final = 7


@bolt(fields=("value",))
def first(event: Tuple) -> Iterator[tuple[bytes]]:
    """Hand the event's value on."""
    yield (event.values[1],)


@bolt(fields=("value",))
def second(given: Tuple) -> Iterator[tuple[bytes]]:
    """Hand it on once more."""
    yield (given.values[0],)


def chain() -> Topology:
    """A spout, two bolts, an output; all that is emitted stays with its task."""
    builder = TopologyBuilder("chain")
    builder.set_spout("events")
    builder.set_bolt("first", first).local_grouping("events")
    builder.set_bolt("second", second).local_grouping("first")
    builder.set_output("out", key=None, value="value").local_grouping("second")
    return builder.build()


def measure(events: int = EVENTS) -> list[dict[str, Any]]:
    """What an event costs, tracked and untracked.

    Raises:
        RuntimeError: An output is missing, or an event is not done.
    """
    figures = []
    for name in ("tracked", "untracked"):
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.executor", name, str(events)],
            stdout=subprocess.PIPE,
            check=True,
        )
        micros = 1e6 * json.loads(run.stdout)
        named = f"executor: an event through two bolts, {name}"
        figures.append({"name": named, "value": round(micros, 2), "unit": "us"})
    return figures


def seconds_an_event(events: int, *, is_tracked: bool) -> float:
    """The best of some rounds.

    Raises:
        RuntimeError: An output is missing, or an event is not done.
    """
    given = [
        EventValues(b"%d" % (number % _KEYS), b"v", (), number, "t", 0, number, number)
        for number in range(events)
    ]
    gc.disable()
    try:
        return min(_round(given, is_tracked=is_tracked) for _ in range(_ROUNDS)) / events
    finally:
        gc.enable()


def _round(given: list[EventValues], *, is_tracked: bool) -> float:
    written: list[Any] = []
    executor = Executor(
        chain(),
        Placement(
            {"events": 2, "first": 2, "second": 2}, {"events": (0,), "first": (0,), "second": (0,)}
        ),
        Rules(),
        clock=time.monotonic,
        next_id=random_ids(1),
        write=lambda _, record: written.append(record[2]),
    )
    next_id, feed = random_ids(2), executor.feed
    began_s = time.perf_counter()
    for values in given:
        feed(Root(next_id(), values, 1, 0.0, is_tracked), values)
    executor.finish()
    seconds = time.perf_counter() - began_s
    acked = executor.result().acked
    if acked != len(given) or len(written) != len(given):
        raise RuntimeError(f"{acked} acked, {len(written)} written, {len(given)} given")
    return seconds


def main() -> None:
    """Measure and print, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["tracked", "untracked"])
    parser.add_argument("events", nargs="?", type=int, default=EVENTS)
    given = parser.parse_args()
    if given.what is not None:
        print(json.dumps(seconds_an_event(given.events, is_tracked=given.what == "tracked")))
        return
    print_figures("The executor by itself", measure())


if __name__ == "__main__":
    main()

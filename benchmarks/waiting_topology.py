"""The topology of the process benchmark whose bolt waits, as one that calls a service does."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology import TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event

CALL_S: Final = 0.002
CONCURRENCY: Final = 16


@bolt(fields=("key", "value"))
def ask(event: Event) -> Iterator[Any]:
    """Take 2 ms."""
    time.sleep(CALL_S)
    yield event.key, event.value


def bare_rate(processes: int, calls: int = 4_000) -> float:
    """Calls a second of as many threads that do nothing else: timers are late, too.

    Args:
        processes: How many, each with `CONCURRENCY` threads.
        calls: How many each thread makes.
    """
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return sum(pool.map(_bare_rate, [calls] * processes, chunksize=1))


def _bare_rate(calls: int) -> float:
    def make_calls() -> None:
        for _ in range(calls):
            time.sleep(CALL_S)

    threads = [threading.Thread(target=make_calls) for _ in range(CONCURRENCY)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return calls * CONCURRENCY / (time.monotonic() - began_s)


builder = TopologyBuilder("waiting")
builder.set_spout("events")
builder.set_bolt("ask", ask, concurrency=CONCURRENCY).fields_grouping("events", "key")
builder.set_output("out").local_grouping("ask")
topology = builder.build()

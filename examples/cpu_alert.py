"""Alerts of hosts that were busy: the average CPU usage of each host over windows of ten seconds.

In what order readings arrive does not matter: the bolts get those of a host in event-time order, so
a window is over as soon as a reading behind its end is there. The producer's own `cpu` source gives
the readings::

    {"hostname": "web-1", "cpu": 0, "usage": 93.5, "occurred_at": 1700000000000}

Run it, with `event_time = "json:occurred_at"` in the job.toml::

    sequitur process examples/cpu_alert.py --config job.toml

or try it without Kafka and without Spark::

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> reading = {"hostname": "web-1", "cpu": 0, "usage": 90.0}
    >>> tester.run([("web-1", reading, time_ms) for time_ms in (1_000, 9_000, 11_000)])
    >>> tester.records("alerts")
    [(b'web-1', b'{"begin_ms":0,"average":90.0}')]
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sequitur import Bolt, TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, Tuple

WINDOW_MS = 10_000
THRESHOLD = 80.0
"""Per cent of a window, averaged over a host's CPUs."""


@bolt(fields=("hostname", "usage"))
def parse(event: Event) -> Iterator[tuple[str, float]]:
    """Read a reading. One that makes no sense raises, and ends in the dead-letter topic."""
    reading = json.loads(event.value or b"")
    yield reading["hostname"], float(reading["usage"])


@dataclass(frozen=True, slots=True)
class Window:
    """What was read of a host since a window began."""

    begin_ms: int
    total: float = 0.0
    readings: int = 0


class Average(Bolt):
    """The average usage in each window of each host.

    This bolt does by itself what others have done for them: it anchors a window's average to the
    reading that came behind its end, and acks each reading.
    """

    fields = ("hostname", "begin_ms", "average")

    def __init__(self) -> None:
        self.windows: dict[str, Window] = {}

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Take a reading in, and close the window that it is behind."""
        hostname = tuple["hostname"]
        begin_ms = tuple.event_time_ms - tuple.event_time_ms % WINDOW_MS
        window = self.windows.get(hostname, Window(begin_ms))
        if begin_ms < window.begin_ms:
            # It was tried again, and readings of the host's other CPUs have not waited for it.
            self.collector.ack(tuple)
            return
        if window.begin_ms < begin_ms:
            average = window.total / window.readings
            self.collector.emit((hostname, window.begin_ms, average), anchors=tuple)
            window = Window(begin_ms)
        self.windows[hostname] = replace(
            window, total=window.total + tuple["usage"], readings=window.readings + 1
        )
        self.collector.ack(tuple)

    def snapshot(self) -> dict[str, Window]:
        """A window goes on in the next batch, and after a restart."""
        return self.windows

    def restore(self, state: Any) -> None:
        """Go on from there."""
        self.windows = state


@bolt(fields=("hostname", "begin_ms", "average"))
def only_busy(window: Tuple) -> Iterator[tuple[Any, ...]]:
    """Those above the threshold."""
    if window["average"] > THRESHOLD:
        yield tuple(window)


builder = TopologyBuilder("cpu-alert")
builder.set_spout("readings")
builder.set_bolt("parse", parse).local_grouping("readings")
builder.set_bolt("average", Average(), parallelism=2).fields_grouping("parse", "hostname")
builder.set_bolt("only_busy", only_busy).local_grouping("average")
builder.set_output("alerts", topic="cpu-alerts", key="hostname", value=None).local_grouping(
    "only_busy"
)

topology = builder.build()

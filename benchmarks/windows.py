"""How fast windows and joins are on the local runner, Kafka to Kafka.

    python -m benchmarks.windows [--events N] [--only NAME ...]

Tumbling windows of 10 s with a count, and with a mean; sessions with a gap of 2 s; a join within
2 s. The rate is that of the steps behind the first one, in which processes start. The results are
read back: all events are in windows, and there are as many sessions and pairs as numpy finds.
Prints a table, and writes build/bench/windows.json, a list of {"name", "value", "unit"}.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from benchmarks.broker import bench_broker
from benchmarks.figures import print_figures
from benchmarks.process import process_command
from benchmarks.reorder import Bench
from benchmarks.reorder_contenders import DELAY_S, Contender, Task, run_contender
from benchmarks.reorder_input import PARTITIONS, Workload
from benchmarks.windows_topology import GAP_MS, KINDS, WITHIN_MS
from sequitur.cli.topic_reader import read_topic
from sequitur.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.reorder_contenders import Took
    from benchmarks.reorder_input import Columns

OUTPUT: Final = Path("build/bench")
_TOPOLOGY: Final = Path(__file__).with_name("windows_topology.py")
_BATCH: Final = 500_000
_SPREAD_MS: Final = 1 << 40


def measure(events: int, only: Sequence[str], console: Console) -> list[dict[str, Any]]:
    """Run the topologies in turn, on one broker."""
    found = []
    with bench_broker() as bootstrap_servers:
        drawn = Bench(bootstrap_servers).fill("events", Workload(events=events, late_share=0))
        for kind in only or KINDS:
            took = _run(kind, bootstrap_servers, drawn)
            steps = took.reports[:-1]
            warm_s = steps[-1]["told_s"] - steps[0]["told_s"]
            warm = sum(step["released"] for step in steps[1:]) / warm_s
            console.print(f"{kind}: {warm:,.0f} events/s once warm")
            found += [
                _figure(f"{kind}.rate_once_warm", warm, "events/s"),
                _figure(f"{kind}.rate", events / took.seconds, "events/s"),
                _figure(f"{kind}.memory", max(took.memory_bytes) / (1 << 20), "MiB"),
            ]
    return found


def _run(kind: str, bootstrap_servers: str, drawn: Columns) -> Took:
    sink = f"events.{kind}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(sink, PARTITIONS, 1)])[sink].result()
    os.environ["BENCH_WINDOW"] = kind
    contender = Contender(
        kind, lambda task: process_command(task, _TOPOLOGY, runner="local", batch=_BATCH)
    )
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
        task = Task(
            bootstrap_servers=bootstrap_servers,
            source="events",
            sink=sink,
            folder=Path(folder),
            delay_s=DELAY_S,
        )
        took = run_contender(contender, task)
    _check(kind, drawn, bootstrap_servers, sink)
    return took


def _check(kind: str, drawn: Columns, bootstrap_servers: str, sink: str) -> None:
    """Raise if what came out is not what the events make."""
    records = read_topic(KafkaSettings(bootstrap_servers=bootstrap_servers), sink)
    values = [json.loads(record.value or b"") for record in records]
    wanted: dict[str, int] = {"events": len(drawn.key)}
    found: dict[str, int] = {"events": sum(one.get("count", 0) for one in values)}
    if kind == "session":
        wanted["sessions"], found["sessions"] = _sessions(drawn), len(values)
    if kind == "join":
        wanted, found = {"pairs": _pairs(drawn)}, {"pairs": len(values)}
    if found != wanted:
        raise RuntimeError(f"{kind}: {found}, and not {wanted}")


def _sessions(drawn: Columns) -> int:
    times = np.sort(drawn.key * _SPREAD_MS + (drawn.event_time_ms - drawn.event_time_ms.min()))
    return 1 + int((np.diff(times) >= GAP_MS).sum())


def _pairs(drawn: Columns) -> int:
    """Count right events from each left one to so much later of the same key."""
    times = drawn.key * _SPREAD_MS + (drawn.event_time_ms - drawn.event_time_ms.min())
    is_right = drawn.event_time_ms % 2 == 1
    rights, lefts = np.sort(times[is_right]), times[~is_right]
    ends = np.searchsorted(rights, lefts + WITHIN_MS, side="right")
    return int((ends - np.searchsorted(rights, lefts)).sum())


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--only", nargs="+", choices=[*KINDS], default=[])
    given = parser.parse_args()
    figures = measure(given.events, given.only, Console())
    print_figures("Windows on the local runner", figures)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "windows.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

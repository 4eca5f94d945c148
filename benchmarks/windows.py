"""How fast windows and joins are, on both runners and beside Flink SQL, Kafka to Kafka.

    python -m benchmarks.windows [--events N] [--only NAME ...] [--engines NAME ...]

Tumbling windows of 10 s with a count, and with a mean; sessions with a gap of 2 s; a join within
2 s. Each rate is from the start of the query to the last result; that of ours also of the steps
behind the first one, in which processes start. Flink puts out at least once, and pairs as they
come. The results are read back: all events are in windows, and there are as many sessions and pairs
as numpy finds.
Prints a table, and writes build/bench/windows.json, a list of {"name", "value", "unit"}.
"""

from __future__ import annotations

import argparse
import itertools
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
from benchmarks.reorder_contenders import (
    DELAY_S,
    Contender,
    Task,
    flink_command,
    run_contender,
)
from benchmarks.reorder_input import PARTITIONS, Workload
from benchmarks.windows_topology import GAP_MS, KINDS, WITHIN_MS
from sequitur.cli.topic_reader import read_topic
from sequitur.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.reorder_contenders import Took
    from benchmarks.reorder_input import Columns

OUTPUT: Final = Path("build/bench")
_TOPOLOGY: Final = Path(__file__).with_name("windows_topology.py")
ENGINES: Final = ("local", "spark", "flink")
_BATCH: Final = 500_000
_SPREAD_MS: Final = 1 << 40


def measure(
    events: int, only: Sequence[str], engines: Sequence[str], console: Console
) -> list[dict[str, Any]]:
    """Run the topologies in turn, on one broker."""
    found = []
    with bench_broker() as bootstrap_servers:
        drawn = Bench(bootstrap_servers).fill("events", Workload(events=events, late_share=0))
        for kind, engine in itertools.product(only or KINDS, engines or ENGINES):
            name, took = f"{kind}.{engine}", _run(kind, engine, bootstrap_servers, drawn)
            figures = {
                "rate": (events / took.seconds, "events/s"),
                "cpu": (1e6 * took.cpu_s / events, "us"),
                "memory": (max(took.memory_bytes) / (1 << 20), "MiB"),
            }
            if engine != "flink":
                steps = took.reports[:-1]
                warm_s = steps[-1]["told_s"] - steps[0]["told_s"]
                warm = sum(step["released"] for step in steps[1:]) / warm_s
                figures["rate_once_warm"] = warm, "events/s"
            told = ", ".join(
                f"{what} {value:,.1f} {unit}" for what, (value, unit) in figures.items()
            )
            console.print(f"{name}: {told}")
            found += [_figure(f"{name}.{what}", *figure) for what, figure in figures.items()]
    return found


def _run(kind: str, engine: str, bootstrap_servers: str, drawn: Columns) -> Took:
    sink = f"events.{kind}.{engine}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(sink, PARTITIONS, 1)])[sink].result()
    os.environ["BENCH_WINDOW"] = kind
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
        task = Task(
            bootstrap_servers=bootstrap_servers,
            source="events",
            sink=sink,
            folder=Path(folder),
            delay_s=DELAY_S,
        )
        took = run_contender(Contender(kind, _command(kind, engine)), task)
    _check(kind, engine, drawn, bootstrap_servers, sink)
    return took


def _command(kind: str, engine: str) -> Callable[[Task], list[str]]:
    if engine == "flink":
        return flink_command(kind)
    return lambda task: process_command(task, _TOPOLOGY, runner=engine, batch=_BATCH)


def _check(kind: str, engine: str, drawn: Columns, bootstrap_servers: str, sink: str) -> None:
    """Raise if what came out is not what the events make."""
    records = read_topic(KafkaSettings(bootstrap_servers=bootstrap_servers), sink)
    values = [json.loads(record.value or b"") for record in records]
    wanted: dict[str, int] = {"events": len(drawn.key)}
    found: dict[str, int] = {"events": sum(one.get("count", 0) for one in values)}
    if kind == "session":
        # Flink puts two sessions into one if there is just the gap between them.
        gap_ms = GAP_MS + 1 if engine == "flink" else GAP_MS
        wanted["sessions"], found["sessions"] = _sessions(drawn, gap_ms), len(values)
    if kind == "join":
        wanted, found = {"pairs": _pairs(drawn)}, {"pairs": len(values)}
    if found != wanted:
        raise RuntimeError(f"{kind}, {engine}: {found}, and not {wanted}")


def _sessions(drawn: Columns, gap_ms: int) -> int:
    times = np.sort(drawn.key * _SPREAD_MS + (drawn.event_time_ms - drawn.event_time_ms.min()))
    return 1 + int((np.diff(times) >= gap_ms).sum())


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
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=[])
    given = parser.parse_args()
    figures = measure(given.events, given.only, given.engines, Console())
    print_figures("Windows and a join", figures)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "windows.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How fast the producer is, beside its peers, in one run on one broker.

    python -m benchmarks.producer [--records N] [--runs N] [--latency-seconds N] [--only NAME ...]
                                  [--without-limits]

Each contender runs in a process of its own, in turn, so that a machine whose speed drifts drifts
for all. The clock starts when the client is built and stops when every record is confirmed; the
records of each run are then counted in the topic. Prints a table, draws build/bench/producer.png,
and writes build/bench/producer.json. Then it measures memory, journal and restart, as
`benchmarks.producer_limits` says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import producer_limits
from benchmarks.broker import bench_broker
from benchmarks.peers.environments import PeerMissingError
from benchmarks.peers.producer_peers import programs
from benchmarks.producer_contenders import LATENCY_RATE_HZ, LATENCY_WARM_UP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from benchmarks.peers.producer_peers import Program

PARTITIONS: Final = 4
WARM_UP_RECORDS: Final = 500_000
LATENCY_SECONDS: Final = 8
OUTPUT: Final = Path("build/bench")
OURS: Final = ("sequitur.send_many", "sequitur.send")


@dataclass(slots=True)
class Result:
    """What one contender reached.

    Attributes:
        name: The contender.
        promise: What it promises of confirmed records.
        runs: Records a second of each run.
        p50_ms: From due to confirmed, of the records of the latency run after its warm-up.
        p99_ms: From due to confirmed, as well.
        peak_memory_bytes: The most that the process held in any run.
    """

    name: str
    promise: str
    runs: list[float] = field(default_factory=list)
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    peak_memory_bytes: int = 0

    @property
    def records_per_s(self) -> float:
        """The median run."""
        return statistics.median(self.runs)

    def as_json(self) -> dict[str, Any]:
        """As it stands in build/bench/producer.json."""
        return {
            "name": self.name,
            "promise": self.promise,
            "records_per_s": round(self.records_per_s),
            "runs": [round(run) for run in self.runs],
            "p50_ms": round(self.p50_ms, 2),
            "p99_ms": round(self.p99_ms, 2),
            "peak_memory_bytes": self.peak_memory_bytes,
        }


class Bench:
    """Runs contenders against one broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._topics = 0

    def run(self, name: str, program: Program, measure: str, records: int) -> dict[str, Any]:
        """Run one contender once.

        Raises:
            RuntimeError: It failed, or the topic does not hold each record once.
        """
        topic = self._new_topic()
        environ = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": self._bootstrap_servers}
        took = program.run(measure, topic, records, environ)
        held = self._count(topic)
        if held != records:
            raise RuntimeError(f"{name} sent {records} records, the topic holds {held}")
        self._admin.delete_topics([topic])[topic].result()
        return took

    def _new_topic(self) -> str:
        self._topics += 1
        topic = f"bench-{self._topics}"
        self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
        return topic

    def _count(self, topic: str) -> int:
        servers = self._bootstrap_servers
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "log_level": 0})
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, partition))[1]
                for partition in range(PARTITIONS)
            )
        finally:
            consumer.close()


def available(only: Collection[str], console: Console) -> dict[str, Program]:
    """Return the contenders that can be had here; say which cannot, and why."""
    found = {}
    for name, program in programs().items():
        if only and name not in only:
            continue
        try:
            program.make()
        except PeerMissingError as missing:
            console.print(f"{name} is left out: {missing}")
        else:
            found[name] = program
    return found


def measure(
    contenders: Mapping[str, Program],
    records: int,
    runs: int,
    latency_seconds: int,
    console: Console,
) -> list[Result]:
    """All contenders, `runs` times in turn, and then each at the latency rate."""
    results = {name: Result(name, one.promise) for name, one in contenders.items()}
    with bench_broker() as bootstrap_servers:
        bench = Bench(bootstrap_servers)
        for name, program in contenders.items():  # the broker's own warm-up, by each client's paths
            bench.run(name, program, "throughput", min(records, WARM_UP_RECORDS))
        for number in range(1, runs + 1):
            for name, result in results.items():
                took = bench.run(name, contenders[name], "throughput", records)
                result.runs.append(records / took["seconds"])
                result.peak_memory_bytes = max(result.peak_memory_bytes, took["peak_memory_bytes"])
                console.print(f"run {number}: {name} {result.runs[-1]:,.0f} records/s")
        due = LATENCY_RATE_HZ * (latency_seconds + LATENCY_WARM_UP_SECONDS)
        for name, result in results.items():
            took = bench.run(name, contenders[name], "latency", due)
            result.p50_ms, result.p99_ms = took["p50_ms"], took["p99_ms"]
    return list(results.values())


def print_table(results: list[Result], console: Console) -> None:
    """Print every figure, and how many times as fast we are."""
    ours = [one for name in OURS for one in results if one.name == name]
    table = Table(title="Producers: idempotent, acks=all, lz4", title_justify="left")
    ratios = [f"{one.name.removeprefix('sequitur.')} is" for one in ours]
    columns = ("records/s", *ratios, "p50 ms", "p99 ms", "memory MiB")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.records_per_s:,.0f}",
            *(f"{one.records_per_s / result.records_per_s:.2f}x" for one in ours),
            f"{result.p50_ms:.1f}",
            f"{result.p99_ms:.1f}",
            f"{result.peak_memory_bytes / 2**20:,.0f}",
        )
    console.print(table)
    console.print(f"p50 and p99: from due to confirmed, at {LATENCY_RATE_HZ:,} events/s")
    console.print("ProducerPerformance: from given to confirmed, in whole ms; no keys and headers")
    for promise in dict.fromkeys(result.promise for result in results):
        names = ", ".join(result.name for result in results if result.promise == promise)
        console.print(f"{promise}: {names}")


def draw(results: list[Result], path: Path) -> None:
    """Draw throughput with each run as a point, and p99."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    speed, latency = figure.subplots(1, 2)
    names = [result.name for result in results][::-1]
    colours = ["#3b6fb6" if name.startswith("sequitur") else "#b8b8b8" for name in names]
    speed.barh(names, [r.records_per_s / 1000 for r in results][::-1], color=colours)
    for place, result in enumerate(results[::-1]):
        speed.plot([run / 1000 for run in result.runs], [place] * len(result.runs), "k.", ms=4)
    speed.set_xlabel("thousand records/s, median and runs")
    latency.barh(names, [result.p99_ms for result in results][::-1], color=colours)
    latency.set_xlabel(f"p99 ms at {LATENCY_RATE_HZ:,} events/s")
    latency.set_yticklabels([])
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--latency-seconds", type=int, default=LATENCY_SECONDS)
    parser.add_argument("--only", nargs="+", choices=list(programs()), default=[])
    parser.add_argument("--without-limits", action="store_true", help="only beside the peers")
    given = parser.parse_args()
    console = Console()
    contenders = available(given.only, console)
    results = measure(contenders, given.records, given.runs, given.latency_seconds, console)
    print_table(results, console)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    draw(results, OUTPUT / "producer.png")
    text = json.dumps([result.as_json() for result in results], indent=2)
    (OUTPUT / "producer.json").write_text(text + "\n")
    if not given.without_limits:
        producer_limits.measure(console)


if __name__ == "__main__":
    main()

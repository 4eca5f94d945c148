"""What the speed, the memory and the latency of the reorder job depend on.

    python -m benchmarks.reorder_shape [--events N] [--only keys|delay|partitions|first|latency ...]
    python -m benchmarks.reorder_shape --only storage --storage s3a://bucket/folder

- keys: the same events with 1 thousand, 20 thousand and 1 million keys;
- delay: the same events, 40 minutes of event time, with a delay of 6 s and of 10 min, and the
  memory of all the job's processes: what waits is on disk;
- partitions: the same events, into 4, 64 and 512 output partitions, with the processor time of all
  the job's processes for a row;
- first: how long after the start of a job its first row can be read, and after that of its query,
  where a million events are there already;
- latency: at 20,000 events/s, how long after its time a row can be read, with 4 and 64 output
  partitions;
- staging: at a steady rate, how long after its time a row can be read where the driver stages
  batches and where tasks do, in turns; `--rate`, `--seconds` and `--warm-up` say of what;
- storage: throughput and latency with the checkpoint on a path and in a place that `--storage`
  names, in turns; only with that. What it asks for is taken from the environment (`AWS_...`).

Everything is exactly once, with the settings one gets without choosing. Prints tables and writes
build/bench/reorder_shape.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.broker import bench_broker
from benchmarks.reorder import OUTPUT, Bench
from benchmarks.reorder_contenders import CONTENDERS
from benchmarks.reorder_first import FIRST_EVENTS, measure_first
from benchmarks.reorder_input import Workload
from benchmarks.reorder_latency import measure_latency
from benchmarks.steady_stream import RATE_HZ, USUAL, Steady, add_stream_options, stream_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.reorder_contenders import Took

KEYS: Final = (1_000, 20_000, 1_000_000)
DELAYS_S: Final = (6, 600)
OUTPUT_PARTITIONS: Final = (4, 64, 512)
_SPAN_MS: Final = 4 * 600_000
_MIB: Final = 2**20
MEASURES: Final = ("keys", "delay", "partitions", "first", "latency", "staging")
WAYS: Final = {"tasks": 0, "driver": 1_000_000}
"""Up to how many rows the driver stages a batch."""
STORAGE: Final = "storage"


@dataclass(frozen=True, slots=True)
class Shape:
    """One run of the job.

    Attributes:
        name: What was different.
        records_per_s: Its throughput.
        memory_bytes: Samples of what its processes held together, twice a second.
        cpu_us: Their processor time for a row, in microseconds.
    """

    name: str
    records_per_s: float
    memory_bytes: Sequence[int]
    cpu_us: float = 0.0

    @property
    def memory_of_quarters_mib(self) -> list[int]:
        """The mean of each quarter of the run: flat, or growing."""
        size = max(1, len(self.memory_bytes) // 4)
        quarters = (self.memory_bytes[n * size : (n + 1) * size] for n in range(4))
        return [round(statistics.mean(quarter or [0]) / _MIB) for quarter in quarters]

    def as_json(self) -> dict[str, Any]:
        """As it stands in build/bench/reorder_shape.json."""
        return {
            "name": self.name,
            "records_per_s": round(self.records_per_s),
            "peak_memory_mib": round(max(self.memory_bytes, default=0) / _MIB),
            "memory_of_quarters_mib": self.memory_of_quarters_mib,
            "cpu_us_a_row": round(self.cpu_us, 2),
        }


def measure_keys(bench: Bench, events: int) -> list[Shape]:
    """One run for each number of keys."""
    shapes: list[Shape] = []
    for keys in KEYS:
        topic = f"keys-{keys}"
        drawn = bench.fill(topic, Workload(events=events, keys=keys))
        took, _, _ = bench.run(CONTENDERS[0], topic, drawn)
        shapes.append(_shape(f"keys.{keys}", events, took))
    return shapes


def measure_delays(bench: Bench, events: int) -> list[Shape]:
    """One run for each delay, on the same events."""
    drawn = bench.fill("delay", Workload(events=events, events_per_ms=events / _SPAN_MS))
    shapes: list[Shape] = []
    for delay_s in DELAYS_S:
        took, _, _ = bench.run(CONTENDERS[0], "delay", drawn, delay_s=delay_s)
        shapes.append(_shape(f"delay.{delay_s}s", events, took))
    return shapes


def measure_partitions(bench: Bench, events: int) -> list[Shape]:
    """One run for each number of output partitions, on the same events."""
    drawn = bench.fill("partitions", Workload(events=events))
    shapes: list[Shape] = []
    for partitions in OUTPUT_PARTITIONS:
        took, _, _ = bench.run(CONTENDERS[0], "partitions", drawn, partitions=partitions)
        shapes.append(_shape(f"partitions.{partitions}", events, took))
    return shapes


def measure_storage(
    bench: Bench, bootstrap_servers: str, events: int, storage: str, console: Console
) -> list[dict[str, Any]]:
    """Each twice, in turns: a backlog, and a steady stream."""
    drawn = bench.fill(STORAGE, Workload(events=events))
    shapes: list[Shape] = []
    latencies: list[dict[str, Any]] = []
    for turn in range(2):
        for name, below in (("path", ""), (storage.partition(":")[0], storage)):

            def checkpoint(what: str, below: str = below) -> str:
                return below and f"{below}/{uuid.uuid4().hex}-{what}"

            took, _, _ = bench.run(CONTENDERS[0], STORAGE, drawn, checkpoint=checkpoint("backlog"))
            shapes.append(_shape(f"{STORAGE}.{name}.{turn}", events, took))
            topic = f"{STORAGE}-{name}-{turn}"
            latency = measure_latency(bootstrap_servers, topic, checkpoint("stream")).as_json()
            console.print(f"{name}: {latency}")
            latencies.append({**latency, "name": f"{STORAGE}.latency.{name}.{turn}"})
    print_shapes("Where the checkpoint is", shapes, console)
    return [*(shape.as_json() for shape in shapes), *latencies]


def measure_latencies(bootstrap_servers: str, console: Console) -> list[dict[str, Any]]:
    """A steady stream into few output partitions, and into many."""
    latencies: list[dict[str, Any]] = []
    for partitions in OUTPUT_PARTITIONS[:2]:
        found = measure_latency(bootstrap_servers, f"latency-{partitions}", partitions=partitions)
        latency = {**found.as_json(), "name": f"latency.{RATE_HZ}.partitions.{partitions}"}
        console.print(
            f"At {RATE_HZ:,} events/s into {partitions} partitions, {latency['rows']:,} rows could "
            "be read"
        )
        for place in ("beyond_delay", "beyond_ideal"):
            p50, p99 = latency[f"{place}_p50_s"], latency[f"{place}_p99_s"]
            than = {"beyond_delay": "event time + delay", "beyond_ideal": "a job without cost"}
            console.print(f"  later than {than[place]} by p50 {p50:.2f} s, p99 {p99:.2f} s")
        latencies.append(latency)
    return latencies


def measure_staging(
    bootstrap_servers: str, stream: Steady, turns: int, console: Console
) -> list[dict[str, Any]]:
    """A steady stream whose batches tasks stage, and one whose batches the driver does."""
    found = []
    for turn in range(turns):
        for way, rows in WAYS.items():
            topic = f"staging-{stream.rate_hz}-{way}-{turn}"
            latency = measure_latency(
                bootstrap_servers, topic, stream=stream, small_batch_rows=rows
            ).as_json()
            console.print(f"{way}: {latency}")
            found.append({**latency, "name": f"staging.{stream.rate_hz}.{way}.{turn}"})
    return found


def _shape(name: str, events: int, took: Took) -> Shape:
    return Shape(name, events / took.seconds, took.memory_bytes, 1e6 * took.cpu_s / events)


def print_shapes(title: str, shapes: Sequence[Shape], console: Console) -> None:
    """Print each run and how far the fastest is from the slowest."""
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("records/s", "CPU us a row", "peak MiB", "MiB in each quarter of the run"):
        table.add_column(column, justify="right", no_wrap=True)
    for shape in shapes:
        quarters = "  ".join(f"{mib:,}" for mib in shape.memory_of_quarters_mib)
        peak = f"{max(shape.memory_bytes, default=0) / _MIB:,.0f}"
        cpu = f"{shape.cpu_us:.2f}"
        table.add_row(shape.name, f"{shape.records_per_s:,.0f}", cpu, peak, quarters)
    console.print(table)
    rates = [shape.records_per_s for shape in shapes]
    costs = [shape.cpu_us for shape in shapes]
    console.print(
        f"the fastest is {max(rates) / min(rates) - 1:.0%} faster than the slowest; "
        f"the dearest row costs {max(costs) / min(costs) - 1:.0%} more than the cheapest"
    )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=Workload().events)
    parser.add_argument("--only", nargs="+", choices=(*MEASURES, STORAGE), default=MEASURES)
    add_stream_options(parser)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--storage", help="URI of a folder, such as s3a://bucket/folder")
    given = parser.parse_args()
    if STORAGE in given.only and not given.storage:
        parser.error("storage is measured where --storage says")
    console = Console()
    found: list[dict[str, Any]] = []
    with bench_broker() as bootstrap_servers:
        bench = Bench(bootstrap_servers)
        if "keys" in given.only:
            shapes = measure_keys(bench, given.events)
            print_shapes("Number of keys", shapes, console)
            found += [shape.as_json() for shape in shapes]
        if "delay" in given.only:
            shapes = measure_delays(bench, given.events)
            print_shapes("Delay", shapes, console)
            found += [shape.as_json() for shape in shapes]
        if "partitions" in given.only:
            shapes = measure_partitions(bench, given.events)
            print_shapes("Output partitions", shapes, console)
            found += [shape.as_json() for shape in shapes]
        if STORAGE in given.only:
            found += measure_storage(bench, bootstrap_servers, given.events, given.storage, console)
        if "first" in given.only:
            events = min(given.events, FIRST_EVENTS)
            first = measure_first(bootstrap_servers, "first", events).as_json()
            console.print(
                f"With {events:,} events to read, a first row could be read {first['start_s']:.1f} "
                f"s after the start of the job, {first['query_s']:.1f} s after that of its query"
            )
            found.append(first)
        if "latency" in given.only:
            found += measure_latencies(bootstrap_servers, console)
        if "staging" in given.only:
            stream = stream_of(given, USUAL)
            found += measure_staging(bootstrap_servers, stream, given.turns, console)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "reorder_shape.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

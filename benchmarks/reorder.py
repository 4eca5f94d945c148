"""How fast the reorder job is, beside its peers, in one run on one broker.

    python -m benchmarks.reorder [--events N] [--runs N] [--only NAME ...]

All contenders read the same topic and write one of their own, in turn. The clock starts when the
query does and stops when its last row is acknowledged or committed; what a process takes before and
after that (JVM, session) is told apart. Then what came out is read back: counted, summed up, and
looked through for order, so that nobody wins by losing rows. Prints a table, draws
build/bench/reorder.png, and writes build/bench/reorder.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.broker import bench_broker
from benchmarks.reorder_check import Written, read_written
from benchmarks.reorder_contenders import CONTENDERS, DELAY_S, Contender, Task, run_contender
from benchmarks.reorder_input import PARTITIONS, Columns, Workload, fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.reorder_contenders import Took

OUTPUT: Final = Path("build/bench")
COMPARED: Final = {
    "flink.keyed": "keyed",
    "flink.global": "global",
    "sequitur.exactly_once": "Spark",
}
"""Of these every contender is told as a multiple, under a short name."""


@dataclass(slots=True)
class Result:
    """What one contender reached.

    Attributes:
        name: The contender.
        events: Events it was given.
        took: Each run.
        written: What stood in its output topic after the last run.
        missing: On-time events that are in no output; only Spark's own way is let off with any.
    """

    name: str
    events: int
    took: list[Took] = field(default_factory=list)
    written: Written = field(default_factory=lambda: Written(0, 0, 0))
    missing: int = 0

    @property
    def records_per_s(self) -> float:
        """The median run."""
        return statistics.median(self.events / took.seconds for took in self.took)

    @property
    def peak_memory_bytes(self) -> int:
        """The most that its processes held together in any run."""
        return max(max(took.memory_bytes, default=0) for took in self.took)

    def times(self, other: Result) -> float:
        """As how many times as fast it is: the median of pairs of runs, each of one round."""
        pairs = zip(self.took, other.took, strict=True)
        return statistics.median(theirs.seconds / ours.seconds for ours, theirs in pairs)

    def as_json(self) -> dict[str, Any]:
        """As it stands in build/bench/reorder.json."""
        return {
            "name": self.name,
            "records_per_s": round(self.records_per_s),
            "seconds": [round(took.seconds, 2) for took in self.took],
            "around_s": [round(took.around_s, 2) for took in self.took],
            "peak_memory_bytes": self.peak_memory_bytes,
            "events": self.events,
            "rows": self.written.rows,
            "inversions": self.written.inversions,
            "missing": self.missing,
        }


class Bench:
    """Runs contenders against one broker, each on the same input.

    Args:
        bootstrap_servers: The broker.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._sinks = 0

    def fill(self, topic: str, workload: Workload) -> Columns:
        """Send a workload into a new topic, and read it back; so the first run finds a warm broker.

        Raises:
            RuntimeError: The topic does not hold the events.
        """
        drawn = fill(self._bootstrap_servers, topic, workload)
        there = read_written(self._bootstrap_servers, topic)
        if (there.rows, there.event_time_sum) != (workload.events, drawn.event_time_sum):
            raise RuntimeError(f"{topic} holds {there.rows} rows of {workload.events} events")
        return drawn

    def run(
        self,
        contender: Contender,
        source: str,
        drawn: Columns,
        *,
        delay_s: int = DELAY_S,
        partitions: int = PARTITIONS,
        checkpoint: str = "",
    ) -> tuple[Took, Written, int]:
        """Run a contender once: what it took, what it wrote, and how much is missing.

        Raises:
            RuntimeError: It failed, lost rows that it must not lose, or did not keep the order.
        """
        self._sinks += 1
        sink = f"{source}.out-{self._sinks}"
        self._admin.create_topics([NewTopic(sink, partitions, 1)])[sink].result()
        with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
            task = Task(
                bootstrap_servers=self._bootstrap_servers,
                source=source,
                sink=sink,
                folder=Path(folder),
                delay_s=delay_s,
                checkpoint=checkpoint,
            )
            took = run_contender(contender, task)
        written = read_written(self._bootstrap_servers, sink)
        late = Written(0, 0, 0)
        if contender.accounts_for_all:
            late = read_written(self._bootstrap_servers, f"{sink}.late")
        missing = check(contender, drawn, written, late)
        self._delete(sink)
        return took, written, missing

    def _delete(self, sink: str) -> None:
        topics = self._admin.list_topics(timeout=30).topics
        made = [name for name in topics if name == sink or name.startswith(f"{sink}.")]
        for deletion in self._admin.delete_topics(made).values():
            deletion.result()


def check(contender: Contender, drawn: Columns, written: Written, late: Written) -> int:
    """Hold what a contender wrote against what it was given; how many events are missing.

    Args:
        contender: Who wrote it.
        drawn: The events.
        written: What stands in its output topic.
        late: What stands in its late topic, if it has one.

    Raises:
        RuntimeError: It lost rows that it must not lose, doubled some, or did not keep the order.
    """
    events, times = len(drawn.event_time_ms), drawn.event_time_ms
    may_be_late = int(drawn.late.sum())
    if contender.accounts_for_all:
        found = (written.rows + late.rows, written.event_time_sum + late.event_time_sum)
        if found != (events, drawn.event_time_sum) or late.rows > may_be_late:
            raise RuntimeError(
                f"{contender.name}: {written.rows} rows in order and {late.rows} late "
                f"(at most {may_be_late} are) do not make the {events} events"
            )
    if contender.keeps_order and written.inversions:
        raise RuntimeError(f"{contender.name}: {written.inversions} rows behind a younger one")
    if written.rows > events:
        raise RuntimeError(f"{contender.name}: {written.rows} rows of {events} events")
    kept = contender.held_back_s * 1000
    may_be_kept = int(np.count_nonzero(times >= times.max() - kept)) if kept else 0
    missing = max(0, events - may_be_late - may_be_kept - written.rows)
    if missing and contender.keeps_order:
        raise RuntimeError(f"{contender.name}: {missing} events on time are missing")
    return missing


def measure(
    workload: Workload, contenders: Sequence[Contender], runs: int, console: Console
) -> list[Result]:
    """All contenders in turn, `runs` times."""
    results = [Result(contender.name, workload.events) for contender in contenders]
    with bench_broker() as bootstrap_servers:
        bench = Bench(bootstrap_servers)
        drawn = bench.fill("bench", workload)
        console.print(f"{workload.events:,} events are in the topic")
        for number in range(1, runs + 1):
            for contender, result in zip(contenders, results, strict=True):
                took, result.written, result.missing = bench.run(contender, "bench", drawn)
                result.took.append(took)
                rate = workload.events / took.seconds
                console.print(f"run {number}: {result.name} {rate:,.0f} records/s")
    return results


def print_table(results: Sequence[Result], console: Console) -> None:
    """Print every figure, and each contender as a multiple of Flink's two ways and our job."""
    table = Table(title="Event-time order, Kafka to Kafka", title_justify="left")
    compared = _compared(results)
    table.add_column("", no_wrap=True)
    columns = (
        "records/s",
        *(f"x {COMPARED[one.name]}" for one in compared),
        "seconds",
        "JVM s",
        "MiB",
    )
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        seconds = statistics.median(took.seconds for took in result.took)
        around_s = statistics.median(took.around_s for took in result.took)
        table.add_row(
            result.name,
            f"{result.records_per_s:,.0f}",
            *(f"{result.times(one):.2f}" for one in compared),
            f"{seconds:.1f}",
            f"{around_s:.1f}",
            f"{result.peak_memory_bytes / 2**20:,.0f}",
        )
    console.print(table)
    console.print("seconds: from the start of the query to its last row; JVM s: around that")
    for result in results:
        if result.written.inversions or result.missing:
            console.print(
                f"{result.name}: {result.written.inversions:,} rows stand behind a younger one of "
                f"their key, {result.missing:,} events on time are missing"
            )


def _compared(results: Sequence[Result]) -> list[Result]:
    return [result for name in COMPARED for result in results if result.name == name]


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw throughput with each run as a point, and memory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    speed, memory = figure.subplots(1, 2)
    upwards = list(results)[::-1]
    names = [result.name for result in upwards]
    colours = ["#3b6fb6" if name.startswith("sequitur") else "#b8b8b8" for name in names]
    speed.barh(names, [result.records_per_s / 1000 for result in upwards], color=colours)
    for place, result in enumerate(upwards):
        runs = [result.events / took.seconds / 1000 for took in result.took]
        speed.plot(runs, [place] * len(runs), "k.", ms=4)
    speed.set_xlabel("thousand records/s, median and runs")
    memory.barh(names, [result.peak_memory_bytes / 2**20 for result in upwards], color=colours)
    memory.set_xlabel("peak memory of all its processes, MiB")
    memory.set_yticklabels([])
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=Workload().events)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[c.name for c in CONTENDERS], default=[])
    given = parser.parse_args()
    contenders = [c for c in CONTENDERS if not given.only or c.name in given.only]
    console = Console()
    results = measure(Workload(events=given.events), contenders, given.runs, console)
    print_table(results, console)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    draw(results, OUTPUT / "reorder.png")
    found = [
        {**result.as_json(), "times": {one.name: result.times(one) for one in _compared(results)}}
        for result in results
    ]
    text = json.dumps(found, indent=2)
    (OUTPUT / "reorder.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

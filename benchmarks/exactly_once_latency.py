"""How long a row takes, as a reader of committed records sees it: ours beside its peers.

    python -m benchmarks.exactly_once_latency [--short] [--rate N] [--seconds N] [--warm-up N]
                                              [--only NAME ...]

The same stream in turns, on one broker. All times of events are fixed beforehand, so that a job or
a sender that falls behind hides nothing. A reader with `isolation.level=read_committed` takes the
time of each row: from when its event was due, beyond event time and delay, and beyond its release
by a job that takes no time. Then lost and doubled rows are counted, and rows behind a younger one
of their key. Who breaks a promise fails the run, at its end. Prints a table, and writes
build/bench/exactly_once.json, with the raw series.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.broker import bench_broker
from benchmarks.peers.environments import PeerMissingError, python_of
from benchmarks.reorder import OUTPUT
from benchmarks.reorder_contenders import flink_command, sequitur_command, streams_command
from benchmarks.reorder_latency import Faults, measure_stream
from benchmarks.steady_stream import Steady, add_stream_options, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.reorder_contenders import Task
    from benchmarks.reorder_latency import Latency

LONG: Final = Steady(seconds=600, warm_up_s=120)
SHORT: Final = Steady(seconds=60, warm_up_s=45)
IN_ORDER: Final = "exactly once, each key in order"
_QUIX_WINDOW_MS: Final = 200
_PEERS: Final = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class Contender:
    """A job that goes on until it is ended.

    Attributes:
        name: Its name in the report.
        promise: What it promises.
        command: The program and its arguments.
        is_once: Whether it may double no row.
        keeps_order: Whether each key's rows must come in order.
        most_hz: Events a second that it is given at most; it falls behind if they are more.
        held_back_ms: How long it may keep an event beyond the delay.
    """

    name: str
    promise: str
    command: Callable[[Task], Sequence[str]]
    is_once: bool = True
    keeps_order: bool = True
    most_hz: int = sys.maxsize
    held_back_ms: int = 0

    def broken(self, faults: Faults) -> str:
        """Return which of its promises a run broke, or nothing."""
        told = {"lost": faults.lost}
        if self.is_once:
            told["doubled"] = faults.doubled
        if self.keeps_order:
            told["out of order"] = faults.inversions
        return ", ".join(f"{count:,} rows {what}" for what, count in told.items() if count)


def _ours(task: Task, *, runner: str) -> list[str]:
    return sequitur_command(task, drain_and_end=False, runner=runner)


def _quix(task: Task) -> list[str]:
    words = [str(python_of("quix")), str(_PEERS / "quix_job.py"), task.bootstrap_servers]
    return [
        *words,
        task.source,
        task.sink,
        str(task.folder),
        str(task.delay_s),
        str(_QUIX_WINDOW_MS),
    ]


def _realtime(task: Task) -> list[str]:
    words = [sys.executable, "-m", "benchmarks.peers.spark_realtime_job", task.bootstrap_servers]
    return [*words, task.source, task.sink, str(task.folder)]


CONTENDERS: Final = (
    Contender("sequitur.local", IN_ORDER, partial(_ours, runner="local")),
    Contender("sequitur.spark", IN_ORDER, partial(_ours, runner="spark")),
    Contender("flink.keyed", IN_ORDER, flink_command("keyed", mode="steady")),
    Contender("flink.ptf", IN_ORDER, flink_command("ptf", mode="steady")),
    Contender("streams", IN_ORDER, partial(streams_command, mode="steady")),
    Contender("quix", IN_ORDER, _quix, most_hz=2_000, held_back_ms=_QUIX_WINDOW_MS),
    Contender(
        "spark.realtime",
        "at least once, rows as they come",
        _realtime,
        is_once=False,
        keeps_order=False,
    ),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a contender reached.

    Attributes:
        contender: It.
        latency: Its rows, if it ran to the end.
        failure: Why it did not, or which promise it broke.
    """

    contender: Contender
    latency: Latency | None
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """As it stands in build/bench/exactly_once.json."""
        found: dict[str, Any] = {"promise": self.contender.promise, "failure": self.failure}
        if self.latency is not None:
            found |= self.latency.as_json()
            found["rate_hz"] = self.latency.schedule.stream.rate_hz
            found["faults"] = dataclasses.asdict(self.latency.faults)
            found["series"] = self.latency.series()
        return {**found, "name": self.contender.name}


def measure(
    bootstrap_servers: str, contenders: Sequence[Contender], stream: Steady, console: Console
) -> list[Result]:
    """Each in turn; who fails is told, and the others are measured all the same."""
    results = []
    for one in contenders:
        its = dataclasses.replace(stream, rate_hz=min(stream.rate_hz, one.most_hz))
        topic = f"committed-{one.name}"
        try:
            latency = measure_stream(
                bootstrap_servers,
                topic,
                one.command,
                stream=its,
                isolation="read_committed",
                held_back_ms=one.held_back_ms,
            )
        except (PeerMissingError, RuntimeError) as error:
            result = Result(one, None, str(error))
        else:
            if latency.counts.any():
                result = Result(one, latency, one.broken(latency.faults))
            else:
                result = Result(one, None, "no row of the measured time came")
        console.print(f"{one.name}: {result.failure or 'as promised'}")
        results.append(result)
    return results


def print_table(results: Sequence[Result], console: Console) -> None:
    """Print every figure, what each promises, and what was wrong."""
    table = Table(title="Rows as a reader of committed records sees them", title_justify="left")
    table.add_column("", no_wrap=True)
    columns = ("events/s", "delay p50", "p99", "due p50", "p99", "CPU us", "MiB", "lost/2x/order")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        if result.latency is None:
            table.add_row(result.contender.name, "failed")
            continue
        found, faults = result.latency.as_json(), result.latency.faults
        table.add_row(
            result.contender.name,
            f"{result.latency.schedule.stream.rate_hz:,}",
            *(
                f"{found[f'{place}_p{share}_s']:.2f}"
                for place in ("beyond_delay", "after_due")
                for share in (50, 99)
            ),
            f"{result.latency.cpu_us:.0f}",
            f"{found['pss_mib'][-1]:,}",
            f"{faults.lost}/{faults.doubled}/{faults.inversions}",
        )
    console.print(table)
    console.print("delay: seconds beyond event time and delay; due: from when the event was due")
    for result in results:
        console.print(f"{result.contender.name}: {result.contender.promise}")
        if result.failure:
            console.print(f"  {result.failure}")


def main() -> None:
    """Measure, print and write; end with status 1 if a contender failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [one.name for one in CONTENDERS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--short", action="store_true", help="a minute each, and not ten")
    add_stream_options(parser)
    given = parser.parse_args()
    stream = stream_of(given, SHORT if given.short else LONG)
    console = Console()
    chosen = [one for one in CONTENDERS if one.name in given.only]
    with bench_broker() as bootstrap_servers:
        results = measure(bootstrap_servers, chosen, stream, console)
    print_table(results, console)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    found = json.dumps([result.as_json() for result in results])
    (OUTPUT / "exactly_once.json").write_text(found + "\n")
    if any(result.failure for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()

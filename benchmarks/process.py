"""How fast a topology behind the reorder stage is, and what tracking costs.

    python -m benchmarks.process [--events N] [--rounds N] [--only NAME ...]

Kafka to Kafka: a chain of two bolts that do next to nothing, with trees tracked and with
`ackers = 0`, beside the reorder job alone, each once a round; a bolt whose calls take 2 ms each and
run side by side (once warm: in the steps behind the first, in which Spark and the JVM get going;
the topology alone: without staging and writing, which take the cores meanwhile). What came out is
read back: counted, summed up and looked through for order. Then transactions with a database: see
`benchmarks.transactional`. Then the acker by itself: see `benchmarks.acker` and
`benchmarks.acker_tasks`. Prints tables, and writes build/bench/process.json,
a list of {"name", "value", "unit"}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console

from benchmarks import acker, acker_tasks, transactional, waiting_topology
from benchmarks.broker import bench_broker
from benchmarks.figures import print_figures
from benchmarks.reorder import Bench
from benchmarks.reorder_contenders import Contender, Task, sequitur_command
from benchmarks.reorder_input import Workload
from sequitur.base.flags import given_flags
from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.topology import ProcessSettings
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines.run_options import ProcessJob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.reorder_contenders import Took

OUTPUT: Final = Path("build/bench")
_HERE: Final = Path(__file__).parent
_CORES: Final = 2
_CALLS: Final = 1_280_000
_CALLS_A_BATCH: Final = 640_000
_CALLED_KEYS: Final = 1_000
_MOST_TRANSACTED: Final = 2_000_000
_COMPARED: Final = (
    ("chain.tracked", "reorder.alone"),
    ("chain.untracked", "reorder.alone"),
    ("chain.tracked", "chain.untracked"),
)
_APART: Final = ("transactional", "acker")
"""Measured by modules of their own."""


def process_command(
    task: Task,
    topology: Path,
    *,
    batch: int | None = None,
    runner: str = "spark",
    drain_and_end: bool = True,
    **process: object,
) -> list[str]:
    """The process job as its users start it.

    Args:
        task: What is to be done.
        topology: The topology's file.
        batch: Most rows of a batch, if not as many as by default.
        runner: What it runs on.
        drain_and_end: Whether it ends with what is there now, or goes on until it is stopped.
        process: Settings of the section `[process]`.
    """
    reorder: dict[str, object] = {} if batch is None else {"max_offsets_per_trigger": batch}
    reorder |= {
        "input_topics": [task.source],
        "output_topic": task.sink,
        "event_time": "json:occurred_at",
        "delay": f"{task.delay_s} s",
        "checkpoint": str(task.folder / "checkpoint"),
        "runner": runner,
    }
    job = ProcessJob(
        kafka=KafkaSettings(bootstrap_servers=task.bootstrap_servers),
        reorder=ReorderSettings.model_validate(reorder),
        process=ProcessSettings.model_validate(process),
    )
    words = [sys.executable, "-m", "sequitur", "process", str(topology), *given_flags(job)]
    return [*words, "--available-now", "--drain"] if drain_and_end else words


def _chain(ackers: int | None = None) -> Callable[[Task], list[str]]:
    return lambda task: process_command(task, _HERE / "chain_topology.py", ackers=ackers)


CONTENDERS: Final = (
    Contender("chain.tracked", _chain(), accounts_for_all=True),
    Contender("chain.untracked", _chain(ackers=0), accounts_for_all=True),
    Contender("reorder.alone", sequitur_command, accounts_for_all=True),
)
WAITING: Final = Contender(
    "waiting",
    lambda task: process_command(task, _HERE / "waiting_topology.py", batch=_CALLS_A_BATCH),
    accounts_for_all=True,
)


def measure_jobs(
    events: int, only: Sequence[str], console: Console, rounds: int = 1
) -> list[dict[str, Any]]:
    """The jobs in turn, round after round, on one broker."""
    found: list[dict[str, Any]] = []
    with bench_broker() as bootstrap_servers:
        bench = Bench(bootstrap_servers)
        chosen = [one for one in CONTENDERS if not only or one.name in only]
        if chosen:
            drawn = bench.fill("chained", Workload(events=events))
        runs: dict[str, list[Took]] = {contender.name: [] for contender in chosen}
        for _ in range(rounds):
            for contender in chosen:
                took, _, _ = bench.run(contender, "chained", drawn)
                runs[contender.name].append(took)
                console.print(
                    f"{contender.name}: {events / took.seconds:,.0f} events/s, "
                    f"{1e6 * took.cpu_s / events:.2f} us of processor time an event"
                )
        found += _of_rounds(runs, events)
        if not only or WAITING.name in only:
            drawn = bench.fill("called", Workload(events=_CALLS, keys=_CALLED_KEYS))
            took, _, _ = bench.run(WAITING, "called", drawn)
            ideal = _CORES * waiting_topology.CONCURRENCY / waiting_topology.CALL_S
            first, last = took.reports[0], took.reports[-1]
            ran_s = (last["processed"]["busy_ms"] - first["processed"]["busy_ms"]) / 1000
            alone = (_CALLS - first["released"]) / ran_s
            steps = took.reports[:-1]
            # Steps overlap, so that theirs is no sum of their times.
            warm_s = steps[-1]["told_s"] - steps[0]["told_s"]
            warm = sum(step["released"] for step in steps[1:]) / warm_s
            console.print(f"waiting: {warm:,.0f} calls/s of {ideal:,.0f}, once warm")
            found.append(_figure("waiting.rate", _CALLS / took.seconds, "calls/s"))
            found.append(_figure("waiting.rate_once_warm", warm, "calls/s"))
            found.append(_figure("waiting.topology_alone", alone, "calls/s"))
            found.append(_figure("waiting.ideal", ideal, "calls/s"))
            bare = waiting_topology.bare_rate(_CORES)
            found.append(_figure("waiting.bare_threads_to_ideal", bare / ideal, "ratio"))
            found.append(_figure("waiting.topology_alone_to_ideal", alone / ideal, "ratio"))
            found.append(_figure("waiting.once_warm_to_ideal", warm / ideal, "ratio"))
    return found


def _of_rounds(runs: Mapping[str, Sequence[Took]], events: int) -> list[dict[str, Any]]:
    """The median of each job's runs, and of what jobs have above each other in each round."""
    found = []
    cpu_us = {
        name: np.array([1e6 * one.cpu_s / events for one in took]) for name, took in runs.items()
    }
    for name, took in runs.items():
        rate = statistics.median(events / one.seconds for one in took)
        found.append(_figure(f"{name}.rate", rate, "events/s"))
        found.append(_figure(f"{name}.cpu", float(np.median(cpu_us[name])), "us an event"))
    for name, other in _COMPARED:
        if {name, other} <= runs.keys():
            beyond = float(np.median(cpu_us[name] - cpu_us[other]))
            found.append(_figure(f"{name}.cpu_beyond.{other}", beyond, "us an event"))
    return found


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    names = [*(one.name for one in CONTENDERS), WAITING.name, *_APART]
    parser.add_argument("--only", nargs="+", choices=names, default=[])
    given = parser.parse_args()
    console = Console()
    figures = []
    if not given.only or set(given.only) - set(_APART):
        figures += measure_jobs(given.events, given.only, console, given.rounds)
    if not given.only or "transactional" in given.only:
        events = min(given.events, _MOST_TRANSACTED)
        figures += transactional.measure(events, process_command, console)
    if not given.only or "acker" in given.only:
        figures += [*acker_tasks.measure(), *acker.measure()]
    print_figures("Topologies", figures)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "process.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

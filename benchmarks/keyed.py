"""What keyed state costs: events a second, processor time, memory, and a step that touches a key.

    python -m benchmarks.keyed [--events N] [--engines NAME ...] [--keys N] [--memory-mib N]
                               [--runner NAME] [--only NAME ...]

- `count`: Kafka to Kafka, a counter with a timer for each of 100,000 keys: the timer is set once a
  key, or again at each event. `--engines` are ours, `local` and `spark`, beside the reorder job
  alone; and Spark's `transformWithStateInPandas` (`pandas`) and `transformWithState` (`rows`), that
  take minutes for 100,000 events. Ours are exactly once, with each key in order; Spark puts out at
  least once, as events come. What came out is read back, as in `benchmarks.reorder`: each event
  once, but for late ones that Spark says it dropped.
- `large`: a counter of many keys (`--keys`) with little `state_memory`, three events a key, in no
  order of keys, on `--runner`. Memory is that of all processes of the job. Then the job starts
  again, and reads a few events more: a restart is how long these take.
- `sparse`: a step that touches one of a million keys, beside the same step without state. No broker
  is in it.

Prints a table, and writes build/bench/keyed.json, a list of {"name", "value", "unit"}.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from benchmarks.broker import bench_broker
from benchmarks.figures import print_figures
from benchmarks.keyed_topology import AFTER_MS, counting
from benchmarks.measured_process import looking
from benchmarks.process import process_command
from benchmarks.reorder import OUTPUT, Bench
from benchmarks.reorder_contenders import DELAY_S, Contender, Task, sequitur_command
from benchmarks.reorder_input import FIRST_MS, PARTITIONS, Workload, key_and_value
from sequitur.pipelines.topology.kept_state import KeptState
from sequitur.testing import ReorderTester

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.reorder_contenders import Took
    from benchmarks.reorder_input import Columns

_HERE: Final = Path(__file__).parent
_TOPOLOGY: Final = _HERE / "keyed_topology.py"
_RUNNERS: Final = ("local", "spark")
_PEERS: Final = ("pandas", "rows")
_COUNT_KEYS: Final = 100_000
_BATCH: Final = 50_000
_SPARSE_KEYS: Final = 1_000_000
_SPARSE_AT_ONCE: Final = 50_000
_SPARSE_STEPS: Final = 100
_COLD_STARTS: Final = 5
_LAST: Final = 1_000
_TIMERS: Final = ("once", "each")
_PARTS_OF_RUN: Final = 4
_PARTS: Final = ("count", "large", "sparse")
_MIB: Final = 1 << 20
_US: Final = 1e6
_MS: Final = 1e3


def measure_count(
    bench: Bench, events: int, engines: Sequence[str], console: Console
) -> Iterator[dict[str, Any]]:
    """The counter: ours, also beside the reorder job alone, and those of peers."""
    drawn = bench.fill("counted", Workload(events=events, keys=_COUNT_KEYS))
    found: dict[tuple[str, str], dict[str, float]] = {}
    for engine in engines:
        is_ours, alone_us = engine in _RUNNERS, 0.0
        if is_ours:
            command = partial(sequitur_command, runner=engine)
            alone = Contender("alone", command, accounts_for_all=True)
            took, _, _ = bench.run(alone, "counted", drawn)
            alone_us = took.cpu_s / events * _US
            yield _figure(f"count.{engine}.alone.rate", events / took.seconds, "events/s")
            yield _figure(f"count.{engine}.alone.cpu", alone_us, "us/event")
        for timer in ("none", *_TIMERS) if is_ours else _TIMERS:
            took = _count(bench, drawn, engine, timer)
            name = f"count.{engine}.timer_{timer}"
            rate, cpu_us = events / took.seconds, took.cpu_s / events * _US
            found[engine, timer] = {"rate": rate, "cpu": cpu_us}
            console.print(f"{name}: {rate:,.0f} events/s, {cpu_us:.2f} us an event")
            yield _figure(f"{name}.rate", rate, "events/s")
            yield _figure(f"{name}.cpu", cpu_us, "us/event")
            if is_ours:
                yield _figure(f"{name}.cpu_beyond_alone", cpu_us - alone_us, "us/event")
    for ours, timer, theirs in itertools.product(_RUNNERS, _TIMERS, _PEERS):
        if {(ours, timer), (theirs, timer)} <= found.keys():
            for what, value in found[ours, timer].items():
                name = f"count.{ours}.timer_{timer}.{what}_to.{theirs}"
                yield _figure(name, value / found[theirs, timer][what], "ratio")


def _count(bench: Bench, drawn: Columns, engine: str, timer: str) -> Took:
    """Count with one engine.

    Raises:
        RuntimeError: An event came out not just once, or is missing and is no late one that the
            engine says it dropped.
    """
    os.environ["KEYED_TIMER"] = timer
    is_ours = engine in _RUNNERS
    command: Callable[[Task], list[str]]
    if is_ours:
        command = partial(process_command, topology=_TOPOLOGY, runner=engine)
    else:
        command = partial(_spark, kind=engine, timer=timer)
    contender = Contender(engine, command, accounts_for_all=is_ours, keeps_order=is_ours)
    took, written, missing = bench.run(contender, "counted", drawn)
    dropped = 0 if is_ours else took.reports[-1]["dropped"]
    if missing or (not is_ours and written.rows + dropped != len(drawn.key)):
        raise RuntimeError(
            f"{engine}: {written.rows} rows and {dropped} dropped do not make the "
            f"{len(drawn.key)} events, of which {int(drawn.late.sum())} are late"
        )
    return took


def _spark(task: Task, *, kind: str, timer: str) -> list[str]:
    words = [sys.executable, "-m", "benchmarks.peers.spark_state_job", task.bootstrap_servers]
    words += [task.source, task.sink, str(task.folder), str(task.delay_s)]
    return [*words, kind, timer, _after_ms()]


def _after_ms() -> str:
    return os.environ.get("KEYED_AFTER_MS", str(AFTER_MS))


def _send_more(bootstrap_servers: str, topic: str, keys: int, count: int, at_ms: int) -> None:
    """Send a few events of any keys."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for key in np.random.default_rng(8).integers(0, keys, count).tolist():
        name, value = key_and_value(key, 0, at_ms)
        producer.produce(topic, value, name)
    producer.flush(60)


def measure_large(
    bootstrap_servers: str,
    bench: Bench,
    console: Console,
    *,
    keys: int,
    memory_mib: int,
    runner: str,
) -> Iterator[dict[str, Any]]:
    """Many keys with little memory."""
    events, source = 3 * keys, f"many.{runner}"
    workload = Workload(events=events, keys=keys, late_share=0)
    bench.fill(source, workload)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(f"{source}.out", PARTITIONS, 1)])[f"{source}.out"].result()
    os.environ |= {"KEYED_TIMER": "once", "KEYED_AFTER_MS": str(1 << 40)}
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
        task = Task(
            bootstrap_servers=bootstrap_servers,
            source=source,
            sink=f"{source}.out",
            folder=Path(folder),
            delay_s=DELAY_S,
        )
        memory = f"{memory_mib} MiB"
        command = process_command(task, _TOPOLOGY, batch=_BATCH, runner=runner, state_memory=memory)
        ran = _Ran(command)
        _, bolts = KeptState.at(str(task.folder / "checkpoint")).bolts()
        end_ms = FIRST_MS + int(workload.span_ms)
        _send_more(bootstrap_servers, source, keys, _LAST, end_ms + 10 * DELAY_S * 1000)
        again = _Ran(command)
    report = again.steps[-1]
    if report["processed"]["taken"] != events + _LAST:
        raise RuntimeError(f"{report['processed']} of {events + _LAST} events")
    steps = [one["seconds"] for one in ran.steps[:-1]]
    pss = [look.pss_bytes / _MIB for look in ran.looks]
    name = f"large.{runner}"
    yield _figure(f"{name}.keys", bolts["count"].keys, "keys")
    yield _figure(f"{name}.files", bolts["count"].size_bytes / _MIB, "MiB")
    yield _figure(f"{name}.rate", events / ran.seconds, "events/s")
    yield _figure(f"{name}.pss.most", max(pss), "MiB")
    yield _figure(f"{name}.pss.beyond_state_memory", max(pss) - memory_mib, "MiB")
    for part in range(_PARTS_OF_RUN):
        some = pss[len(pss) * part // _PARTS_OF_RUN : len(pss) * (part + 1) // _PARTS_OF_RUN]
        yield _figure(f"{name}.pss.quarter_{part + 1}", statistics.median(some), "MiB")
    yield _figure(f"{name}.step.median", statistics.median(steps), "s")
    yield _figure(f"{name}.step.longest", max(steps), "s")
    yield _figure(f"{name}.restart", again.first_step_s, "s")
    console.print(f"{name}: {len(steps)} steps in {ran.seconds:.0f} s")
    console.print("pss:", *(f"{one:.0f}" for one in pss))
    console.print("steps:", *(f"{one:.2f}" for one in steps))


class _Ran:
    """A job that ran to its end: its steps, and what its processes held each second."""

    def __init__(self, command: Sequence[str]) -> None:
        begun_s = time.monotonic()
        words = [*command, "--progress", "json"]
        self.steps: list[Mapping[str, Any]] = []
        self.first_step_s = 0.0
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            with looking(process.pid, 1.0) as looks:
                for line in process.stdout:
                    found = json.loads(line)
                    if not self.first_step_s and found.get("released"):
                        self.first_step_s = time.monotonic() - begun_s
                    self.steps.append(found)
        self.looks = looks[:-1]
        self.seconds = float(self.steps[-1]["seconds"])
        if process.returncode:
            raise RuntimeError(f"{words} ended with status {process.returncode}")


def measure_sparse(keys: int, console: Console) -> Iterator[dict[str, Any]]:
    """A step that touches one key of many, warm and behind a start, with state and without."""
    found: dict[str, tuple[float, float]] = {}
    for timer in ("none", "once"):
        found[timer] = _sparse(keys, timer)
        console.print(f"sparse, timer {timer}: warm and cold {found[timer]} ms")
    for place, name in enumerate(("warm", "cold")):
        with_state, without = found["once"][place], found["none"][place]
        yield _figure(f"sparse.{name}.without_state", without, "ms")
        yield _figure(f"sparse.{name}.more_with_state", with_state - without, "ms")


def _sparse(keys: int, timer: str) -> tuple[float, float]:
    settings = {
        "input_topics": ["in"],
        "output_topic": "ordered",
        "event_time": "json:occurred_at",
        "delay": "0 s",
    }
    numbers = itertools.count()

    def rows(some: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {"key": b"key-%012d" % one, "value": b'{"occurred_at":%d}' % (FIRST_MS + next(numbers))}
            for one in some
        ]

    random = np.random.default_rng(7)
    with ReorderTester(settings, counting(timer, 1 << 40), partitions=PARTITIONS) as tester:
        for begin in range(0, keys, _SPARSE_AT_ONCE):
            tester.run(rows(range(begin, begin + _SPARSE_AT_ONCE)))
        time.sleep(5)  # merges end
        tester.run(rows([0]))
        cold = []
        warm = [
            _took_ms(tester, rows([int(random.integers(0, keys))])) for _ in range(_SPARSE_STEPS)
        ]
        for _ in range(_COLD_STARTS):
            tester.restart()
            cold.append(_took_ms(tester, rows([int(random.integers(0, keys))])))
    return statistics.median(warm), statistics.median(cold)


def _took_ms(tester: ReorderTester, rows: Sequence[Mapping[str, Any]]) -> float:
    begun_s = time.monotonic()
    tester.run(rows)
    return (time.monotonic() - begun_s) * _MS


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--memory-mib", type=int, default=64)
    engines = (*_RUNNERS, *_PEERS)
    parser.add_argument("--engines", nargs="+", choices=engines, default=_RUNNERS)
    parser.add_argument("--runner", choices=_RUNNERS, default="local")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS)
    given = parser.parse_args()
    console = Console()
    figures: list[dict[str, Any]] = []
    if "sparse" in given.only:
        figures += measure_sparse(_SPARSE_KEYS, console)
    if {"count", "large"} & set(given.only):
        with bench_broker() as bootstrap_servers:
            bench = Bench(bootstrap_servers)
            if "count" in given.only:
                figures += measure_count(bench, given.events, given.engines, console)
            if "large" in given.only:
                figures += measure_large(
                    bootstrap_servers,
                    bench,
                    console,
                    keys=given.keys,
                    memory_mib=given.memory_mib,
                    runner=given.runner,
                )
    print_figures("Keyed state", figures)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "keyed.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

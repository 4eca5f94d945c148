"""The producers of the benchmark that are not in our own Python: how each starts, what it says.

- kafka-python 3, in an environment of its own: `benchmarks.producer_contenders` sends with it, too;
- franz-go: franz_go/main.go, which sends the same records as these;
- Java's own client, by Kafka's `ProducerPerformance`: the same values, without keys and headers.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measured_process import run_measured
from benchmarks.peers.environments import go_program, python_of, tools_class_path
from benchmarks.producer_contenders import (
    CONTENDERS,
    LATENCY_RATE_HZ,
    LATENCY_WARM_UP_SECONDS,
    LINGER_MS,
    VALUES,
)
from sequitur.pipelines.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ONCE_WHILE_IT_LIVES: Final = "once and in order while the process lives"
ONCE_FOR_GOOD: Final = "once and in order, also over restarts"
_KAFKA_PYTHON: Final = "kafka-python.send"
_FRANZ_GO: Final = "franz-go"
_JAVA: Final = "java.ProducerPerformance"
_BATCH_BYTES: Final = 256 << 10
_MEMORY_BYTES: Final = 256 << 20
_TOLD: Final = re.compile(
    r"^(?P<records>\d+)(?: steady state)? records sent, (?P<rate>[\d.,]+) records/sec .* "
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th"
)


@dataclass(frozen=True, slots=True)
class Program:
    """A producer that the benchmark starts.

    Attributes:
        promise: What it promises of the records that it confirms.
        run: Sends so many records into a topic, for `throughput` or `latency`; returns `seconds`,
            `p50_ms` and `p99_ms` (0 for `throughput`), and `peak_memory_bytes`.
        make: Makes what it runs in.
    """

    promise: str
    run: Callable[[str, str, int, Mapping[str, str]], dict[str, Any]]
    make: Callable[[], object] = lambda: None


def programs() -> dict[str, Program]:
    """Return every producer by its name, ours first."""
    found = {
        name: Program(
            ONCE_FOR_GOOD if name.startswith("sequitur") else ONCE_WHILE_IT_LIVES, _in_python(name)
        )
        for name in CONTENDERS
        if name != _KAFKA_PYTHON
    }
    apart = _in_python(_KAFKA_PYTHON, lambda: str(python_of("kafka_python")))
    found[_KAFKA_PYTHON] = Program(ONCE_WHILE_IT_LIVES, apart, lambda: python_of("kafka_python"))
    found[_JAVA] = Program(ONCE_WHILE_IT_LIVES, _run_java, tools_class_path)
    found[_FRANZ_GO] = Program(ONCE_WHILE_IT_LIVES, _run_go, go_program)
    return found


def _in_python(
    name: str, python: Callable[[], str] = lambda: sys.executable
) -> Callable[[str, str, int, Mapping[str, str]], dict[str, Any]]:
    def run(measure: str, topic: str, records: int, environ: Mapping[str, str]) -> dict[str, Any]:
        words = [python(), "-m", "benchmarks.producer_contenders", name, measure, topic]
        return _told_as_json([*words, str(records)], environ)

    return run


def _run_go(measure: str, topic: str, records: int, environ: Mapping[str, str]) -> dict[str, Any]:
    return _told_as_json([str(go_program()), measure, topic, str(records)], environ)


def _told_as_json(words: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    told = json.loads(run_measured(words, environ).lines[-1][1])
    latencies = told.pop("latencies_s")[LATENCY_RATE_HZ * LATENCY_WARM_UP_SECONDS :]
    return {**told, **{f"p{share}_ms": latency_ms(latencies, share / 100) for share in (50, 99)}}


def latency_ms(latencies_s: list[float], share: float) -> float:
    """Return the latency that a share of the records stay within, in milliseconds."""
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else 0.0


def _run_java(measure: str, topic: str, records: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Its clock starts when the client is built, and a latency when a record is given to it."""
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
        values = Path(folder, "values")
        values.write_bytes(b"\n".join(VALUES))
        words = [str(find_java().program), "-cp", tools_class_path()]
        words += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
        words += ["--num-records", str(records), "--payload-file", str(values)]
        if measure == "latency":
            words += ["--throughput", str(LATENCY_RATE_HZ)]
            words += ["--warmup-records", str(LATENCY_RATE_HZ * LATENCY_WARM_UP_SECONDS)]
        else:
            words += ["--throughput", "-1"]
        words += ["--bootstrap-server", environ["KAFKA_BOOTSTRAP_SERVERS"], "--command-property"]
        words += ["acks=all", "enable.idempotence=true", "compression.type=lz4"]
        words += [f"linger.ms={LINGER_MS}", f"batch.size={_BATCH_BYTES}"]
        words += [f"buffer.memory={_MEMORY_BYTES}"]
        finished = run_measured(words, environ)
    told = read_performance([line for _, line in finished.lines])
    return {**told, "peak_memory_bytes": finished.peak_memory_bytes}


def read_performance(lines: list[str]) -> dict[str, float]:
    """Return what `ProducerPerformance` told last.

    Raises:
        RuntimeError: It told nothing.
    """
    matches = [match for line in lines if (match := _TOLD.match(line))]
    if not matches:
        raise RuntimeError(f"ProducerPerformance told no figures: {lines[-3:]}")
    last = matches[-1]
    seconds = int(last["records"]) / float(last["rate"].replace(",", "."))
    return {"seconds": seconds, "p50_ms": float(last["p50"]), "p99_ms": float(last["p99"])}

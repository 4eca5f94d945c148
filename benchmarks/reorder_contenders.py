"""The contenders of the reorder benchmark: how each is started, and what it has to hold to."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import spark_native_job
from benchmarks.measured_process import run_measured
from benchmarks.peers.environments import (
    flink_environment,
    flink_function,
    streams_class_path,
)
from sequitur.base.flags import given_flags
from sequitur.consumer.reorder import ReorderSettings
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines.java import find_java
from sequitur.pipelines.run_options import ReorderJob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a contender is given.

    Attributes:
        bootstrap_servers: The broker.
        source: Topic with the events, all there already.
        sink: Topic for the events in order; it is there, and empty.
        folder: For checkpoints; it is there, and empty.
        delay_s: How late an event may be and still be put into its place.
        checkpoint: Where our job's checkpoint is, if not in the folder.
    """

    bootstrap_servers: str
    source: str
    sink: str
    folder: Path
    delay_s: int
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to restore order.

    Attributes:
        name: Its name in the report.
        command: The program and its arguments; it prints a JSON object with `seconds` last.
        accounts_for_all: Whether each event must be in an output; else late ones may be missing.
        held_back_s: Event time at the end of the input whose events it may keep.
        keeps_order: Whether each key's events must come out in order.
    """

    name: str
    command: Callable[[Task], Sequence[str]]
    accounts_for_all: bool = False
    held_back_s: int = 0
    keeps_order: bool = True


@dataclass(frozen=True, slots=True)
class Took:
    """What a run took.

    Attributes:
        seconds: From the start of the query to its last row committed.
        around_s: The rest of the process's life: JVM and session come up and go down.
        memory_bytes: Samples of what its processes held together.
        cpu_s: Their processor time, from start to end.
        reports: What it told of its steps, and at last of itself; `told_s` is when, in seconds
            since its start.
    """

    seconds: float
    around_s: float
    memory_bytes: Sequence[int]
    cpu_s: float = 0.0
    reports: Sequence[Mapping[str, Any]] = ()


def run_contender(contender: Contender, task: Task) -> Took:
    """Run a contender to its end; see `run_job`."""
    return run_job(contender.command(task), os.environ)


def run_job(command: Sequence[str], environ: Mapping[str, str]) -> Took:
    """Run a program to its end.

    Args:
        command: It, and its arguments; it prints a JSON object with `seconds` last.
        environ: Its environment.

    Raises:
        RuntimeError: It failed.
    """
    finished = run_measured(command, environ)
    reports = [
        {**json.loads(line), "told_s": told_s}
        for told_s, line in finished.lines
        if line.startswith("{")
    ]
    seconds = float(reports[-1]["seconds"])
    around_s = finished.seconds - seconds
    return Took(seconds, around_s, finished.memory_bytes, finished.cpu_s, reports)


def sequitur_command(task: Task, *, drain_and_end: bool = True, **settings: object) -> list[str]:
    """Our job as its users start it, with the settings they get when they choose none.

    Args:
        task: What is to be done.
        drain_and_end: Whether it ends with what is there now, or goes on until it is stopped.
        settings: Settings of the section `[reorder]`.
    """
    job = ReorderJob(
        kafka=KafkaSettings(bootstrap_servers=task.bootstrap_servers),
        reorder=ReorderSettings.model_validate(
            {
                "input_topics": [task.source],
                "output_topic": task.sink,
                "event_time": "json:occurred_at",
                "delay": f"{task.delay_s} s",
                "checkpoint": task.checkpoint or str(task.folder / "checkpoint"),
                **settings,
            }
        ),
    )
    words = [sys.executable, "-m", "sequitur", "reorder", *given_flags(job)]
    on_spark = job.reorder.runner == "spark"
    if on_spark and task.checkpoint and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        # Hadoop, which writes Spark's part, does not look for these there.
        words += ["--conf", f"spark.hadoop.fs.s3a.endpoint={endpoint}"]
        region = os.environ.get("AWS_REGION", "us-east-1")
        words += ["--conf", f"spark.hadoop.fs.s3a.endpoint.region={region}"]
        words += ["--conf", "spark.hadoop.fs.s3a.path.style.access=true"]
    return [*words, "--available-now", "--drain"] if drain_and_end else words


def flink_command(kind: str, *, mode: str = "bounded") -> Callable[[Task], list[str]]:
    """Flink's job of a kind, as `benchmarks.peers.flink_job` says."""

    def command(task: Task) -> list[str]:
        flink = flink_environment()
        program = [str(flink.python), str(_HERE / "peers" / "flink_job.py"), kind, mode]
        words = [*program, task.bootstrap_servers, task.source, task.sink, str(flink.connector)]
        function = str(flink_function()) if kind == "ptf" else ""
        return [*words, function, str(task.folder), str(task.delay_s)]

    return command


def streams_command(task: Task, *, mode: str = "bounded") -> list[str]:
    """Kafka Streams' job, as StreamsJob.java says."""
    words = [str(find_java().program), "-cp", streams_class_path(), "StreamsJob", mode]
    words += [task.bootstrap_servers, task.source, task.sink]
    return [*words, str(task.folder), str(task.delay_s)]


def _spark_native(task: Task) -> list[str]:
    words = [sys.executable, "-m", spark_native_job.__name__, task.bootstrap_servers, task.source]
    return [*words, task.sink, str(task.folder), str(task.delay_s)]


DELAY_S: Final = 6
CONTENDERS: Final = (
    Contender("sequitur.exactly_once", sequitur_command, accounts_for_all=True),
    Contender("sequitur.local", partial(sequitur_command, runner="local"), accounts_for_all=True),
    Contender("flink.keyed", flink_command("keyed")),
    Contender("flink.global", flink_command("global")),
    Contender("streams", streams_command),
    Contender(
        "spark.native",
        _spark_native,
        held_back_s=DELAY_S + spark_native_job.WINDOW_S,
        keeps_order=False,
    ),
)

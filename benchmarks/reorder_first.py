"""How long a job that finds a backlog takes to its first row in order."""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.measured_process import running
from benchmarks.reorder_contenders import DELAY_S, Task, sequitur_command
from benchmarks.reorder_input import PARTITIONS, Workload, fill

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping

FIRST_EVENTS: Final = 1_000_000
_POLL_S: Final = 0.05
_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class First:
    """When the first row could be read.

    Attributes:
        start_s: After the start of the job's process.
        query_s: After the job has made Spark's part of its checkpoint, which is when its query
            begins.
    """

    start_s: float
    query_s: float

    def as_json(self) -> dict[str, Any]:
        """As it stands in build/bench/reorder_shape.json."""
        return {
            "name": "first",
            "start_s": round(self.start_s, 2),
            "query_s": round(self.query_s, 2),
        }


def measure_first(bootstrap_servers: str, topic: str, events: int) -> First:
    """Start the job on a topic that holds events already, and wait for the first row.

    Raises:
        RuntimeError: The job ended by itself, or released nothing in five minutes.
    """
    fill(bootstrap_servers, topic, Workload(events=events))
    with first_row(bootstrap_servers, topic, sequitur_command) as (first, _):
        return first


@contextlib.contextmanager
def first_row(
    bootstrap_servers: str,
    source: str,
    command: Callable[..., list[str]],
    environ: Mapping[str, str] | None = None,
    *,
    delay_s: int = DELAY_S,
) -> Iterator[tuple[First, subprocess.Popen[bytes]]]:
    """Start a job, and give when its first row could be read; it runs until the block ends.

    Args:
        bootstrap_servers: The broker.
        source: The topic with the events.
        command: Makes the job's command, as `sequitur_command` does.
        environ: The job's environment, if not that of this process.
        delay_s: The job's delay.

    Raises:
        RuntimeError: The job ended by itself, or released nothing in five minutes.
    """
    sink = f"{source}.out-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    topics = [NewTopic(f"{sink}{end}", PARTITIONS, 1) for end in ("", ".late", ".quarantine")]
    for creation in admin.create_topics(topics).values():
        creation.result()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "group.id": "bench-first",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(sink, number, 0) for number in range(PARTITIONS)])
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as made:
        folder = Path(made)
        task = Task(
            bootstrap_servers=bootstrap_servers,
            source=source,
            sink=sink,
            folder=folder,
            delay_s=delay_s,
        )
        words = command(task, drain_and_end=False)
        begun_s = time.monotonic()
        with running(words, environ, folder=folder) as job:
            with contextlib.closing(consumer):
                first = _first(consumer, job, begun_s, folder / "checkpoint" / "spark")
            yield first, job


def _first(consumer: Consumer, job: subprocess.Popen[bytes], begun_s: float, spark: Path) -> First:
    query_s = None
    while time.monotonic() - begun_s < _TIMEOUT_S:
        if job.poll() is not None:
            raise RuntimeError(f"the job ended by itself, with status {job.returncode}")
        message = consumer.poll(_POLL_S)
        now_s = time.monotonic()
        if query_s is None and spark.exists():
            query_s = now_s
        if message is not None and message.error() is None:
            return First(now_s - begun_s, now_s - (query_s or now_s))
    raise RuntimeError(f"no row was released in {_TIMEOUT_S:g} s")

"""How long a job that finds a backlog takes to its first row in order."""

from __future__ import annotations

import tempfile
import time
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
    sink = f"{topic}.out"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(sink, PARTITIONS, 1)])[sink].result()
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
    try:
        with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
            task = Task(
                bootstrap_servers=bootstrap_servers,
                source=topic,
                sink=sink,
                folder=Path(folder),
                delay_s=DELAY_S,
            )
            begun_s = time.monotonic()
            with running(sequitur_command(task, drain_and_end=False)) as job:
                return _first(consumer, job, begun_s, task.folder / "checkpoint" / "spark")
    finally:
        consumer.close()


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

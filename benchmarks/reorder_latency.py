"""How late the reorder job releases at a steady rate, seen by a reader of its output.

    python -m benchmarks.reorder_latency BOOTSTRAP_SERVERS TOPIC SECONDS RATE_HZ

run by itself sends the events: so many a second, their event times behind the clock by a random
disorder, few of them late by far more. `measure_latency` runs that beside the job, reads the job's
output as it appears, and takes the time of each row. On two cores all of them share.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.measured_process import running
from benchmarks.reorder_contenders import DELAY_S, Task, sequitur_command
from benchmarks.reorder_input import PARTITIONS, Workload, key_and_value

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

RATE_HZ: Final = 20_000
_BEAT_S: Final = 0.01
_POLL_S: Final = 0.05
_TIMES: Final = re.compile(rb'"occurred_at":([0-9]+),"sent_at":([0-9]+)')


@dataclass(frozen=True, slots=True)
class Steady:
    """A stream of events at one rate.

    Attributes:
        rate_hz: Events a second.
        seconds: How long it is measured.
        warm_up_s: How long it runs before that.
    """

    rate_hz: int = RATE_HZ
    seconds: float = 60
    warm_up_s: float = 45


@dataclass(frozen=True, slots=True)
class Latency:
    """How long after its time each row could be read.

    Attributes:
        stream: What the job read.
        after_arrival_s: From arrival + delay; below 0 where a row arrived late itself.
        after_due_s: From event time + delay, which is when a job without any cost releases it.
        cpu_us: Processor time of the job's processes for a row, in microseconds.
        step_ms: Time from one step to the next.
    """

    stream: Steady
    after_arrival_s: Sequence[float]
    after_due_s: Sequence[float]
    cpu_us: float
    step_ms: float

    def as_json(self) -> dict[str, Any]:
        """As it stands in build/bench/reorder_shape.json."""
        found = {"after_arrival": self.after_arrival_s, "after_due": self.after_due_s}
        return {
            "name": f"latency.{self.stream.rate_hz}",
            "rows": len(self.after_due_s),
            "cpu_us_a_row": round(self.cpu_us, 1),
            "step_ms": round(self.step_ms),
            **{
                f"{name}_p{share}_s": round(float(np.percentile(seconds, share)), 3)
                for name, seconds in found.items()
                for share in (50, 99, 99.9, 100)
            },
        }


def measure_latency(
    bootstrap_servers: str,
    topic: str,
    checkpoint: str = "",
    *,
    partitions: int = PARTITIONS,
    stream: Steady = Steady(),
    **settings: object,
) -> Latency:
    """Run the job on a steady stream, and read what it releases into so many partitions.

    Its settings are those of the section `[reorder]`.

    Raises:
        RuntimeError: The job ended by itself, or released nothing.
    """
    sink = f"{topic}.out"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    made = [NewTopic(topic, PARTITIONS, 1), NewTopic(sink, partitions, 1)]
    for creation in admin.create_topics(made).values():
        creation.result()
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
        task = Task(
            bootstrap_servers=bootstrap_servers,
            source=topic,
            sink=sink,
            folder=Path(folder),
            delay_s=DELAY_S,
            checkpoint=checkpoint,
        )
        words = sequitur_command(task, drain_and_end=False, **settings)
        feed = [sys.executable, "-m", __name__, bootstrap_servers, topic]
        feed += [str(stream.warm_up_s + stream.seconds), str(stream.rate_hz)]
        steps = Path(checkpoint or f"{folder}/checkpoint", "done")
        with running(words) as job, running(feed) as feeder:
            consumer = _consumer(bootstrap_servers, sink, partitions)
            with contextlib.closing(consumer):
                return _read(consumer, stream, _Job(job, steps), feeder)


def _consumer(bootstrap_servers: str, topic: str, partitions: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "group.id": "bench-latency",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return consumer


@dataclass(frozen=True, slots=True)
class _Job:
    """The job: the processor time of its processes, and the number of its newest step."""

    process: subprocess.Popen[bytes]
    steps: Path

    def look(self) -> tuple[float, float, int]:
        """Return the time, what they have spent, and how many steps there were."""
        spent = 0.0
        root = psutil.Process(self.process.pid)
        for one in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                spent += sum(one.cpu_times()[:4])  # with that of children that have ended
        done = [int(path.name) for path in self.steps.glob("0*")] if self.steps.is_dir() else []
        return time.monotonic(), spent, max(done, default=0)


def _read(
    consumer: Consumer, stream: Steady, job: _Job, feeder: subprocess.Popen[bytes]
) -> Latency:
    begin_ms = (time.time() + stream.warm_up_s) * 1000
    begun = None
    arrival: list[float] = []
    due: list[float] = []
    while feeder.poll() is None:
        if (status := job.process.poll()) is not None:
            raise RuntimeError(f"the job ended by itself, with status {status}")
        messages = consumer.consume(stream.rate_hz, timeout=_POLL_S)
        now_ms = time.time() * 1000
        if begun is None and now_ms >= begin_ms:
            begun = job.look()
        for message in messages:
            found = _TIMES.search(message.value() or b"")
            if found is not None and int(found[2]) >= begin_ms:
                due.append(now_ms / 1000 - int(found[1]) / 1000 - DELAY_S)
                arrival.append(now_ms / 1000 - int(found[2]) / 1000 - DELAY_S)
    ended = job.look()
    if not due or begun is None:
        raise RuntimeError("the job released nothing")
    passed_s, spent_s, steps = (after - before for before, after in zip(begun, ended, strict=True))
    cpu_us = 1e6 * spent_s / (passed_s * stream.rate_hz)
    return Latency(stream, arrival, due, cpu_us, 1e3 * passed_s / max(1, steps))


def feed(bootstrap_servers: str, topic: str, seconds: float, rate_hz: int) -> None:
    """Send events at a rate, so many each beat, for so long."""
    workload = Workload()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
        }
    )
    drawn = random.Random(workload.seed)
    sent, began_s = 0, time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        now_ms = time.time_ns() // 1_000_000
        while sent < passed_s * rate_hz:
            late_ms = workload.late_ms if drawn.random() < workload.late_share else 0
            time_ms = now_ms - drawn.randrange(workload.disorder_ms) - late_ms
            key, value = key_and_value(drawn.randrange(workload.keys), 5000, time_ms)
            producer.produce(topic, value[:-1] + b',"sent_at":%d}' % now_ms, key)
            sent += 1
        producer.poll(0)
        time.sleep(_BEAT_S)
    producer.flush()


if __name__ == "__main__":
    feed(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))

"""How late a job releases at a steady rate, seen by a reader of its output.

`measure_stream` runs a job, and beside it what sends the stream (`benchmarks.steady_stream`).
It reads the job's output as it appears, and takes the time of each row. On two cores all of them
share. Then it holds what came against what was sent: nobody is fast by losing or doubling rows.
`measure_latency` does that with the reorder job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.measured_process import looking, running
from benchmarks.reorder_contenders import DELAY_S, Task, sequitur_command
from benchmarks.reorder_input import PARTITIONS
from benchmarks.steady_stream import USUAL, Ideal, Schedule, Steady, ideal_release, number_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from benchmarks.measured_process import Look

_POLL_S: Final = 0.05
_AT_ONCE: Final = 20_000
_LOOKS: Final = 60
_REST_S: Final = 120.0
_SHARES: Final = (50, 99, 99.9, 100)
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Faults:
    """What a job did to the events that it had to put out.

    Attributes:
        lost: Events that did not come.
        doubled: Rows that came once more.
        inversions: Rows right behind a younger one of their key.
    """

    lost: int
    doubled: int
    inversions: int


@dataclass(frozen=True, slots=True)
class Latency:
    """How long after its time each row of the measured time could be read.

    Attributes:
        schedule: What was sent.
        ideal: What a job does that takes no time.
        seen_ms: When each event of the schedule could be read first, from the start of the stream;
            not a number of one that could not.
        looks: The job's processes through the measured time, now and then.
        steps: The number of its steps at the first look, and at the last.
        sender: How far behind its times the sender was.
        faults: What was wrong with the rows.
    """

    schedule: Schedule
    ideal: Ideal
    seen_ms: NDArray[np.float64]
    looks: Sequence[Look]
    steps: tuple[int, int]
    sender: Mapping[str, Any]
    faults: Faults

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Whether an event is measured: it has to be released before the stream ends, and came."""
        return np.asarray(
            self.schedule.is_measured & self.ideal.is_released & ~np.isnan(self.seen_ms)
        )

    @property
    def seconds(self) -> dict[str, NDArray[np.float64]]:
        """From when it was due, beyond event time and delay, and beyond the ideal release."""
        chosen = self.counts
        begins = {
            "after_due": self.schedule.due_ms,
            "beyond_delay": self.schedule.event_ms + 1000.0 * DELAY_S,
            "beyond_ideal": self.ideal.release_ms,
        }
        seen_ms = self.seen_ms[chosen]
        return {name: (seen_ms - begin[chosen]) / 1000 for name, begin in begins.items()}

    @property
    def cpu_us(self) -> float:
        """Processor time of the job's processes for a row, in microseconds."""
        first, last = self.looks[0], self.looks[-1]
        rows = (last.at_s - first.at_s) * self.schedule.stream.rate_hz
        return 1e6 * (last.cpu_s - first.cpu_s) / rows

    @property
    def step_ms(self) -> float:
        """Time from one step to the next."""
        passed_s = self.looks[-1].at_s - self.looks[0].at_s
        return 1e3 * passed_s / max(1, self.steps[1] - self.steps[0])

    def as_json(self) -> dict[str, Any]:
        """Return the figures, as they stand in build/bench/reorder_shape.json."""
        thirds = (self.looks[0], self.looks[len(self.looks) // 2], self.looks[-1])
        return {
            "name": f"latency.{self.schedule.stream.rate_hz}",
            "rows": int(self.counts.sum()),
            "cpu_us_a_row": round(self.cpu_us, 1),
            "step_ms": round(self.step_ms),
            "pss_mib": [round(look.pss_bytes / _MIB) for look in thirds],
            **{
                f"{name}_{share}_s": value
                for name, seconds in self.seconds.items()
                for share, value in percentiles(seconds).items()
            },
        }

    def series(self) -> dict[str, Any]:
        """Return what the figures are taken from.

        Each latency as rows by millisecond, and its percentiles in each second of the stream.
        """
        first = self.looks[0]
        second = (self.schedule.due_ms[self.counts] / 1000).astype(np.int64)
        return {
            "sender_behind": dict(self.sender),
            "steps": list(self.steps),
            "looks": {
                "after_s": [round(look.at_s - first.at_s, 2) for look in self.looks],
                "cpu_s": [round(look.cpu_s - first.cpu_s, 2) for look in self.looks],
                "pss_mib": [round(look.pss_bytes / _MIB, 1) for look in self.looks],
                "processes": [look.processes for look in self.looks],
            },
            **{
                name: {"rows_by_ms": _by_ms(seconds), "by_second": _by_second(seconds, second)}
                for name, seconds in self.seconds.items()
            },
        }


def percentiles(seconds: NDArray[np.float64]) -> dict[str, float]:
    """Return the shares of rows that took at most so long, to the millisecond."""
    found = np.percentile(seconds, _SHARES)
    return {f"p{share}": round(float(one), 3) for share, one in zip(_SHARES, found, strict=True)}


def _by_ms(seconds: NDArray[np.float64]) -> dict[str, int]:
    found, rows = np.unique(np.floor(1000 * seconds).astype(np.int64), return_counts=True)
    return {str(ms): count for ms, count in zip(found.tolist(), rows.tolist(), strict=True)}


def _by_second(seconds: NDArray[np.float64], second: NDArray[np.int64]) -> list[list[float]]:
    """Each second, with its median, p99 and maximum; they come in order."""
    cuts = np.flatnonzero(np.diff(second)) + 1
    parts = np.split(seconds, cuts)
    numbers = second[np.append(0, cuts)].tolist()
    return [
        [number, *(round(float(one), 3) for one in np.percentile(part, (50, 99, 100)))]
        for number, part in zip(numbers, parts, strict=True)
    ]


def measure_latency(
    bootstrap_servers: str,
    topic: str,
    checkpoint: str = "",
    *,
    partitions: int = PARTITIONS,
    stream: Steady = USUAL,
    **settings: object,
) -> Latency:
    """Run the reorder job on a steady stream, and read what it releases into so many partitions.

    Its settings are those of the section `[reorder]`.

    Raises:
        RuntimeError: The job ended by itself, or lost, doubled or misplaced a row.
    """

    def command(task: Task) -> list[str]:
        return sequitur_command(
            dataclasses.replace(task, checkpoint=checkpoint), drain_and_end=False, **settings
        )

    found = measure_stream(bootstrap_servers, topic, command, partitions=partitions, stream=stream)
    if found.faults != Faults(0, 0, 0):
        raise RuntimeError(f"what the job put out is not right: {found.faults}")
    return found


def measure_stream(
    bootstrap_servers: str,
    topic: str,
    command: Callable[[Task], Sequence[str]],
    *,
    partitions: int = PARTITIONS,
    stream: Steady = USUAL,
    isolation: str = "read_uncommitted",
    held_back_ms: int = 0,
) -> Latency:
    """Run a job on a steady stream, and read what it puts out, at this isolation level.

    It may keep events for so long beyond the delay, so that the last of the stream never come.

    Raises:
        RuntimeError: The job ended by itself.
    """
    sink = f"{topic}.out"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    made = [NewTopic(topic, PARTITIONS, 1), NewTopic(sink, partitions, 1)]
    for creation in admin.create_topics(made).values():
        creation.result()
    schedule = Schedule.of(stream)
    ideal = ideal_release(schedule.due_ms, schedule.event_ms, schedule.partition, 1000 * DELAY_S)
    kept_ms = 1000 * DELAY_S + held_back_ms
    last = ideal_release(schedule.due_ms, schedule.event_ms, schedule.partition, kept_ms)
    owed = ideal.is_released & np.isfinite(last.release_ms)
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as made_folder:
        folder = Path(made_folder)
        state = folder / "state"
        state.mkdir()
        words = command(
            Task(
                bootstrap_servers=bootstrap_servers,
                source=topic,
                sink=sink,
                folder=state,
                delay_s=DELAY_S,
            )
        )
        begin_ms = int(time.time() * 1000) + 1000
        given = [begin_ms, stream.rate_hz, stream.seconds, stream.warm_up_s]
        feed = [sys.executable, "-m", "benchmarks.steady_stream", bootstrap_servers, topic]
        feed += map(str, given)
        told, sent = folder / "steps", folder / "sent"
        with (
            running(words, output=told) as job,
            running(feed, output=sent) as feeder,
            contextlib.closing(
                _consumer(bootstrap_servers, sink, partitions, isolation)
            ) as consumer,
        ):
            reader = _Reader(consumer, schedule, begin_ms, (job, feeder))
            reader.read_until(begin_ms / 1000 + stream.warm_up_s)
            steps_before = _steps(told)
            with looking(job.pid, stream.seconds / _LOOKS) as looks:
                reader.read_until(begin_ms / 1000 + stream.warm_up_s + stream.seconds)
                steps = _steps(told)
            reader.read_rest(owed)
            feeder.wait()
        sender = json.loads(sent.read_text())
    faults = reader.faults(owed)
    return Latency(schedule, ideal, reader.seen_ms, looks, (steps_before, steps), sender, faults)


def _consumer(bootstrap_servers: str, topic: str, partitions: int, isolation: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "group.id": "bench-latency",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def _steps(told: Path) -> int:
    """Count the steps that a job has told of."""
    return told.read_bytes().count(b'{"step":')


class _Reader:
    """Takes the time at which each event of a schedule can be read, and their order."""

    def __init__(
        self,
        consumer: Consumer,
        schedule: Schedule,
        begin_ms: int,
        programs: Sequence[subprocess.Popen[bytes]],
    ) -> None:
        self._consumer = consumer
        self._schedule = schedule
        self._begin_ms = begin_ms
        self._programs = programs
        self._order: list[NDArray[np.int64]] = []
        self.seen_ms = np.full(len(schedule.due_ms), np.nan)

    def read_until(self, time_s: float) -> None:
        """Read until the clock shows a time."""
        while time.time() < time_s:
            self._read()

    def read_rest(self, expected: NDArray[np.bool_]) -> None:
        """Read until each of these is there, or it takes too long."""
        ends_s = time.monotonic() + _REST_S
        left = np.flatnonzero(expected)
        while len(left := left[np.isnan(self.seen_ms[left])]) and time.monotonic() < ends_s:
            self._read()

    def _read(self) -> None:
        for program in self._programs:
            if program.poll():
                raise RuntimeError(f"{program.args!r} ended by itself: {program.returncode}")
        first = self._consumer.poll(_POLL_S)  # which does not wait for many, as consume does
        if first is None:
            return
        messages = [first, *self._consumer.consume(_AT_ONCE, timeout=0)]
        now_ms = time.time() * 1000 - self._begin_ms
        values = [one.value() for one in messages if one.error() is None]
        numbers = np.array([number_of(value) for value in values if value], dtype=np.int64)
        # The first time counts; that there is one only is looked at below.
        self.seen_ms[numbers] = np.fmin(self.seen_ms[numbers], now_ms)
        self._order.append(numbers)

    def faults(self, owed: NDArray[np.bool_]) -> Faults:
        """Hold what came against what had to come."""
        order = np.concatenate(self._order) if self._order else np.array([], dtype=np.int64)
        return Faults(
            lost=int(np.count_nonzero(np.isnan(self.seen_ms) & owed)),
            doubled=len(order) - len(np.unique(order)),
            inversions=behind_a_younger(self._schedule.key[order], self._schedule.event_ms[order]),
        )


def behind_a_younger(key: NDArray[np.int64], event_ms: NDArray[np.int64]) -> int:
    """Count the rows right behind a younger one of their key, in the order in which they came."""
    by_key = np.argsort(key, kind="stable")
    is_same = np.diff(key[by_key]) == 0
    return int(np.count_nonzero(is_same & (np.diff(event_ms[by_key]) < 0)))

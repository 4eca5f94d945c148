"""A stream of events at one rate, whose times are all fixed before the first is sent.

    python -m benchmarks.steady_stream BOOTSTRAP_SERVERS TOPIC BEGIN_MS RATE_HZ SECONDS WARM_UP_S

sends it: each event when it is due, or as soon as it can be sent behind that. An event's time is
behind that at which it is due by a random disorder, that of few by far more. So whoever waits for
an event counts from when it was due, and a sender or a job that falls behind hides nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Producer

from benchmarks.reorder_input import FIRST_MS, PARTITIONS, Workload, columns, key_and_value
from sequitur.kafka.partition import murmur2

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATE_HZ: Final = 20_000
_BEAT_S: Final = 0.01
_FLUSH_TIMEOUT_S: Final = 60
_POSITIVE: Final = 0x7FFFFFFF


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

    @property
    def workload(self) -> Workload:
        """What its events are like."""
        events = int(self.rate_hz * (self.warm_up_s + self.seconds))
        return Workload(events=events, events_per_ms=self.rate_hz / 1000)


USUAL: Final = Steady()


def add_stream_options(parser: argparse.ArgumentParser) -> None:
    """Let the caller of a benchmark set what its stream is like."""
    parser.add_argument("--rate", type=int, dest="rate_hz", help="events a second")
    parser.add_argument("--seconds", type=float, help="how long a stream is measured")
    before = "how long it runs before that"
    parser.add_argument("--warm-up", type=float, dest="warm_up_s", help=before)


def stream_of(given: argparse.Namespace, usual: Steady) -> Steady:
    """Return the stream that the caller has set; the usual one where he has set nothing."""
    values = {one.name: getattr(given, one.name) for one in fields(usual)}
    return replace(usual, **{name: one for name, one in values.items() if one is not None})


@dataclass(frozen=True, slots=True)
class Schedule:
    """The events of a stream, in the order they are sent; each array has one entry an event.

    Attributes:
        stream: The stream.
        key: Number of the key.
        partition: Where the key's events go, in a topic of `PARTITIONS`.
        due_ms: When it is to be sent, from the start of the stream.
        event_ms: Event time, from there, too.
    """

    stream: Steady
    key: NDArray[np.int64]
    partition: NDArray[np.int64]
    due_ms: NDArray[np.float64]
    event_ms: NDArray[np.int64]

    @classmethod
    def of(cls, stream: Steady) -> Schedule:
        """Draw the events: the same stream gives the same."""
        workload = stream.workload
        drawn = columns(workload)
        places = [
            (murmur2(key_and_value(key, 0, 0)[0]) & _POSITIVE) % PARTITIONS
            for key in range(workload.keys)
        ]
        return cls(
            stream,
            drawn.key,
            np.array(places)[drawn.key],
            np.arange(workload.events) / workload.events_per_ms,
            drawn.event_time_ms - FIRST_MS,
        )

    @property
    def is_measured(self) -> NDArray[np.bool_]:
        """Whether an event is due behind the warm-up."""
        return self.due_ms >= 1000 * self.stream.warm_up_s


@dataclass(frozen=True, slots=True)
class Ideal:
    """What a job does that takes no time: it has each event at once, and releases all it can.

    Attributes:
        release_ms: When it releases each event, from the start of the stream; infinite where the
            stream ends before.
        is_late: Whether an event comes behind what it has released; it is in no such output.
    """

    release_ms: NDArray[np.float64]
    is_late: NDArray[np.bool_]

    @property
    def is_released(self) -> NDArray[np.bool_]:
        """Whether the job releases an event, and before the stream ends."""
        return np.asarray(np.isfinite(self.release_ms) & ~self.is_late)


def ideal_release(
    due_ms: NDArray[np.float64],
    event_ms: NDArray[np.int64],
    partition: NDArray[np.int64],
    delay_ms: int,
) -> Ideal:
    """Return when a job that takes no time releases events.

    An event is out as soon as each partition has shown a time that is so much later as the delay.
    That is some time behind its own time and the delay: no partition shows the time of the clock.

    Args:
        due_ms: When it has each event, which never falls.
        event_ms: Event times.
        partition: The partition of each event.
        delay_ms: The delay.
    """
    never = np.iinfo(np.int64).min
    newest = [
        np.maximum.accumulate(np.where(partition == number, event_ms, never))
        for number in np.unique(partition)
    ]
    frontier = np.min(newest, axis=0)
    wanted = event_ms + delay_ms
    reached = np.maximum(np.searchsorted(frontier, wanted), np.arange(len(due_ms)))
    release_ms = np.append(due_ms, np.inf)[reached]
    return Ideal(release_ms, np.append(never, frontier[:-1]) > wanted)


def feed(bootstrap_servers: str, topic: str, begin_ms: int, stream: Steady) -> dict[str, Any]:
    """Send a stream that begins at a time of the clock; return how far behind it was once warm.

    Raises:
        RuntimeError: The broker did not take an event.
    """
    failures: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 10_000_000,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "on_delivery": delivered,
            "delivery.report.only.error": True,
        }
    )
    schedule = Schedule.of(stream)
    sent = 0
    behind_ms: list[float] = []
    while sent < len(schedule.due_ms):
        now_ms = time.time() * 1000 - begin_ms
        due = int(np.searchsorted(schedule.due_ms, now_ms, side="right"))
        if due > sent:
            if now_ms >= 1000 * stream.warm_up_s:
                behind_ms.append(float(now_ms - schedule.due_ms[sent]))
            messages = _messages(schedule, slice(sent, due), begin_ms)
            if producer.produce_batch(topic, messages) != len(messages):
                raise RuntimeError("the sender has more events waiting than it can hold")
            sent = due
        producer.poll(0)
        time.sleep(_BEAT_S)
    left = producer.flush(_FLUSH_TIMEOUT_S)
    if failures or left:
        raise RuntimeError(f"{len(failures)} events failed, {left} are not out: {failures[:1]}")
    shares = {
        f"p{share}_ms": round(float(np.percentile(behind_ms, share)), 1) for share in (50, 99)
    }
    return {**shares, "max_ms": round(max(behind_ms), 1)}


def _messages(schedule: Schedule, part: slice, begin_ms: int) -> list[dict[str, Any]]:
    rows = zip(
        range(part.start, part.stop),
        schedule.key[part].tolist(),
        (begin_ms + schedule.event_ms[part]).tolist(),
        strict=True,
    )
    pairs = ((number, key_and_value(key, 5000, time_ms)) for number, key, time_ms in rows)
    return [
        {"key": key, "value": value[:-1] + b',"number":%d}' % number}
        for number, (key, value) in pairs
    ]


def number_of(value: bytes) -> int:
    """Return the number of an event in its stream."""
    return int(value[value.rindex(b":") + 1 : -1])


def main() -> None:
    """Send, and print how far behind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap_servers")
    parser.add_argument("topic")
    parser.add_argument("begin_ms", type=int)
    parser.add_argument("rate_hz", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("warm_up_s", type=float)
    given = parser.parse_args()
    stream = Steady(given.rate_hz, given.seconds, given.warm_up_s)
    print(json.dumps(feed(given.bootstrap_servers, given.topic, given.begin_ms, stream)))


if __name__ == "__main__":
    main()

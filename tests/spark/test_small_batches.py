"""What the driver stages goes out as what tasks stage: the same topic, record by record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.broker_job import BY_DRIVER, BY_TASKS
from tests.support.events import Event, Headers
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sequitur.cli.topic_reader import TopicRecord
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

_OF_A_RUN = ("step", "rows", "min_event_time_ms", "max_event_time_ms", "behind", "max_behind_ms")


def _odd_events(now_ms: int, count: int) -> list[Event]:
    """Events of three of four partitions: late ones, and all that a value, key or header may be."""
    keys = [None, b"", b"a", b"\xff\x00", b"key 4", b"key 5"]
    headers: list[Headers] = [
        [],
        [],
        [("h", b"1"), ("h", None)],
        [("\u00e9", b""), ("", b"\x00")],
    ]
    events = []
    for number in range(count):
        at = now_ms - 60_000 + 10 * (number ^ 5) - (30_000 if number % 41 == 0 else 0)
        value: bytes | None = json.dumps({"at": at, "n": number}).encode()
        timestamp_ms = now_ms - 3 * number
        match number % 29:
            case 3:
                value, timestamp_ms = None, at - 1_000
            case 7:
                value = b'{"at": '
            case 11:
                value = b""
            case 13:
                value = json.dumps({"at": "soon"}).encode()
            case 17:
                value = json.dumps({"at": at, "more": "x" * 20_000}).encode()
        events.append(
            Event(
                value=value,
                key=keys[number % len(keys)],
                headers=headers[number % len(headers)],
                partition=number % 3,
                timestamp_ms=timestamp_ms,
            )
        )
    return events


def _in_transactions(job: Job, events: Iterable[Event], *, size: int = 7) -> None:
    """Send events in transactions, beside others that are aborted."""
    kafka, failures = job.kafka.librdkafka(), []
    producers = [
        Producer(
            {
                **kafka,
                "transactional.id": f"{job.topic}-{name}",
                "compression.type": codec,
                "on_delivery": lambda error, _: failures.append(error) if error else None,
            }
        )
        for name, codec in (("kept", "zstd"), ("aborted", "lz4"))
    ]
    kept, aborted = producers
    for one in producers:
        one.init_transactions(PATIENCE_S)
    waiting = list(events)
    for at in range(0, len(waiting), size):
        for one in producers:
            one.begin_transaction()
        for event in waiting[at : at + size]:
            for one in producers:
                one.produce(
                    job.topic,
                    event.value if one is kept else b"aborted",
                    event.key,
                    event.partition,
                    timestamp=event.timestamp_ms,
                    headers=event.headers,
                )
                one.flush(PATIENCE_S)
        aborted.abort_transaction(PATIENCE_S)
        kept.commit_transaction(PATIENCE_S)
    assert failures == []


def _staged(job: Job) -> list[dict[str, Any]]:
    """Return what was logged of the batches, without names of files and who logged it."""
    found = []
    for path in sorted(Path(job.settings.checkpoint, "staged").iterdir()):
        document = json.loads(path.read_text())
        for name in ("owner", "life", "topics"):
            document.pop(name, None)
        for known in document["clock"]["partitions"]:
            del known["seen_ms"], known["silent_ms"], known["idle_at_ms"]
        if document.get("run") is not None:
            document["run"] = {name: document["run"][name] for name in _OF_A_RUN}
        found.append(document)
    return found


def _seen(records: Sequence[TopicRecord]) -> list[tuple[Any, ...]]:
    """Return all that a reader sees of records but the topic, whose name is in headers, too."""
    return sorted(
        (one.partition, one.offset, one.key, one.value, tuple(one.headers), one.timestamp_ms)
        for one in records
    )


@pytest.mark.test_all
@pytest.mark.promise("order-keys-values-headers", "order-small-batches", "order-tombstones")
def test_both_ways_put_out_the_same(job: Job) -> None:
    """Of transactions that are committed or aborted, and with a partition that stays empty.

    A deletion behind a large row of its key is dated by that row, which tasks read by itself else.
    """
    now_ms = time.time_ns() // 1_000_000
    events = _odd_events(now_ms, 240)
    large = json.dumps({"at": now_ms - 58_000, "more": "x" * 20_000}).encode()
    deleted = [
        Event(value=value, key=b"gone", partition=0, timestamp_ms=now_ms - 90_000)
        for value in (large, None)
    ]
    ways = {
        name: job.with_settings(
            output_topic=f"{job.topic}.{name}",
            checkpoint=f"{job.settings.checkpoint}-{name}",
            max_offsets_per_trigger=60,
            delay="300 ms",
            timestamp_floor="6 h",
            tombstones="key",
            **way,
        )
        for name, way in (("driver", BY_DRIVER), ("tasks", BY_TASKS))
    }
    job.produce([*events[:80], *deleted])
    _in_transactions(job, events[80:160])
    place = TopicPartition(job.topic, 0, 10)  # records that are gone before anything is read
    admin = AdminClient(job.kafka.librdkafka())
    admin.delete_records([place])[place].result(PATIENCE_S)
    for one in ways.values():
        one.run(now_ms=lambda: now_ms)
    job.produce(events[160:200])
    _in_transactions(job, events[200:])
    for one in ways.values():
        report = one.run(drain=True, now_ms=lambda: now_ms + 1_000)
        assert report.totals.read == 232
        assert report.totals.late > 0
    driver, tasks = ways.values()
    gone = [record.value for record in driver.released() if record.key == b"gone"]
    assert gone == [large, None]
    assert _seen(driver.released()) == _seen(tasks.released())
    assert any(one.value is None and one.key is not None for one in driver.released())
    for aside in ("late", "quarantined"):
        found, wanted = getattr(driver, aside)(), getattr(tasks, aside)()
        assert _seen(found) == _seen(wanted)
        assert found
    assert _staged(driver) == _staged(tasks)
    assert max(_parts(driver)) == 1
    assert max(_parts(tasks)) > 1


def _parts(job: Job) -> list[int]:
    """Return how many files the batches have, one after the other."""
    return [len(entry.runs[-1].files) for entry, _ in job.steps if entry.runs]

"""Rows that are too large for their topics go aside, and stop nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from sequitur.cli.dead_letters import DeadLetter, request_rows
from sequitur.consumer.reorder.reasons import (
    LATE,
    NO_KEY,
    OVERSIZED_HEADER,
    REASON_HEADER,
    TOO_LARGE,
    UNPARSABLE,
)
from sequitur.consumer.reorder.timestamps import EVENT_TIME_HEADER
from sequitur.errors import LateRowError
from sequitur.pipelines.store.storage import open_file
from sequitur.pipelines.topology.replays import replays_folder, write_request
from tests.spark import bolts
from tests.support.events import T0, Event, event, time_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from sequitur.cli.topic_reader import TopicRecord
    from tests.conftest import MakeTopic
    from tests.support.broker_job import BrokerJob, StorageFolder

_BROKERS_DEFAULT = 1_048_588
_NOISE = random.Random(1).randbytes(_BROKERS_DEFAULT).hex()
"""What compression makes no smaller than a topic takes."""


def _send(job: BrokerJob, *values: bytes, key: bytes = b"large") -> None:
    """Send values that a topic takes only where it is told to; to partition 0, in their order."""
    producer = Producer({**job.kafka.librdkafka(), "message.max.bytes": 4_000_000})
    for value in values:
        producer.produce(job.topic, value, key, partition=0, headers=[("own", b"1")])
    assert producer.flush(PATIENCE_S) == 0


def _value(at: int, **more: object) -> bytes:
    return json.dumps({"at": at, **more}).encode()


@pytest.fixture
def wide(job: BrokerJob, make_topic: MakeTopic) -> BrokerJob:
    """A job whose input topic takes larger records than the topics it writes to."""
    topic = make_topic(partitions=1, max_message_bytes=4_000_000)
    return job.with_settings(input_topics=[topic], output_topic=f"{topic}.ordered", rescue=False)


def _aside(record: TopicRecord, event_time_ms: int | None) -> str:
    """The file that a record names, in the checkpoint; it has nothing that is large itself."""
    assert record.value is None
    assert record.key == b"large"
    headers = list(record.headers)
    assert headers[0][0] == REASON_HEADER
    if event_time_ms is not None:  # too old for the retention of the topic
        assert headers.pop() == (EVENT_TIME_HEADER, str(event_time_ms).encode())
    assert headers[-1][0] == OVERSIZED_HEADER
    return (headers[-1][1] or b"").decode()


@pytest.mark.promise("order-late-bad-row", "order-row-larger-output")
def test_rows_too_large_for_their_topics_go_aside(wide: BrokerJob, storage: StorageFolder) -> None:
    """Bad, late or good: what is added makes it too large, or it was before; the file has it."""
    wide = wide.with_settings(checkpoint=storage.uri)
    # As the broker takes it, and no more: with the reason and the place it would be too large.
    bad = b"no json " + _NOISE.encode()[: _BROKERS_DEFAULT - 300]
    good = _value(T0 + 1, noise=_NOISE)
    packed = _value(T0 + 2, spaces=" " * 2_000_000)
    late = _value(T0 - 60_000, noise=_NOISE[: _BROKERS_DEFAULT - 300])
    _send(wide, _value(T0), bad, good, packed, _value(T0 + 10_000))
    wide.run()
    _send(wide, late)
    report = wide.run(drain=True)
    assert report.totals.held == 0
    assert dict(report.totals.quarantined) == {TOO_LARGE: 1, UNPARSABLE: 1}
    expected = {LATE: late, TOO_LARGE: good, UNPARSABLE: bad}
    times = {LATE: T0 - 60_000}  # what is quarantined has none of its own
    aside = [*wide.quarantined(), *wide.late()]
    reasons = [(record.header(REASON_HEADER) or b"").decode() for record in aside]
    assert sorted(reasons) == sorted(expected)
    for record, reason in zip(aside, reasons, strict=True):
        with open_file(storage.location / _aside(record, times.get(reason))) as file:
            rows = pq.read_table(file).to_pylist()
        (row,) = [row for row in rows if row["reason"] == reason]
        assert (row["key"], row["value"]) == (b"large", expected[reason])
        assert row["headers"] == [{"key": "own", "value": b"1"}]
    assert [time_of(record) - T0 for record in wide.released()] == [0, 2, 10_000]


@pytest.mark.promise("order-late-row-read")
def test_late_row_that_is_too_large_with_its_headers_is_emitted_without(wide: BrokerJob) -> None:
    """It was staged when late rows were to end the job, so no room was left for them."""
    _send(wide, _value(T0), _value(T0 + 10_000))
    wide.run(drain=True)
    large = _value(T0 + 1, noise=_NOISE[: _BROKERS_DEFAULT - 300])
    _send(wide, large, _value(T0 + 2))
    with pytest.raises(LateRowError):
        wide.with_settings(late_policy="fail").run()
    report = wide.with_settings(late_policy="emit").run(drain=True)
    assert (report.totals.read, report.totals.late, report.totals.held) == (4, 2, 0)
    late = [(record.value, record.header(REASON_HEADER)) for record in wide.released()[2:]]
    assert late == [(large, None), (_value(T0 + 2), LATE.encode())]


@pytest.mark.promise("process-dead-letter-larger", "process-output-larger-topic")
def test_large_outputs_and_dead_letters_stop_no_topology(wide: BrokerJob) -> None:
    """The event of an output too large is given up; the file of its dead letter has it whole."""
    job = wide.running_topology(bolts.chain(), max_attempts=1)
    large = _value(T0 + 1, noise=_NOISE)
    _send(job, large)
    job.produce([event(T0, key="k"), event(T0 + 2, key="large")])
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == [0, 2]
    (record,) = job.dead_letters()
    letter = DeadLetter.of(record)
    assert (letter.key, letter.value, letter.headers) == (b"large", None, ())
    assert "larger than its topic takes (max.message.bytes = 1048588)" in letter.error
    root = Path(job.settings.checkpoint)
    whole = letter.whole(root)
    assert (whole.value, whole.headers, whole.file) == (large, (("own", b"1"),), None)
    counts = job.processed()
    assert (counts["taken"], counts["acked"], counts["dead"]) == (3, 2, 1)
    write_request(replays_folder(job.settings), request_rows([whole]))
    job.run(drain=True)
    again: list[Any] = [DeadLetter.of(one).whole(root).value for one in job.dead_letters()]
    assert again == [large, large]


@pytest.mark.test_all
@pytest.mark.promise("order-output-topic-compacted")
def test_rows_without_a_key_pass_by_a_compacted_topic(
    job: BrokerJob, make_topic: MakeTopic, storage: StorageFolder
) -> None:
    """Its broker takes none of them: they are quarantined, and all others come out."""
    output = make_topic(cleanup_policy="compact")
    job = job.with_settings(output_topic=output, app=output, checkpoint=storage.uri)
    keyless = Event(value=_value(T0 + 30), partition=0)
    job.produce([*(event(T0 + n, key=f"k{n}", partition=n % 4) for n in range(20)), keyless])
    report = job.run(drain=True)
    assert (report.totals.held, dict(report.totals.quarantined)) == (0, {NO_KEY: 1})
    assert sorted(time_of(record) - T0 for record in job.released()) == list(range(20))
    (bad,) = job.quarantined()
    assert (bad.key, bad.value, bad.header(REASON_HEADER)) == (None, keyless.value, b"key-missing")

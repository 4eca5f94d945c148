"""What `sequitur measure` says of records: how late they are, and what a delay puts in order."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.cli.disorder import SHOWN_DELAYS_MS, Disorder, KeyTimes
from sequitur.cli.measure import read_into
from sequitur.consumer.reorder import ReorderSettings
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.stored_batches import LogRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.cli.disorder import DelayOutcome, DisorderReport

T0 = 1_700_000_000_000
PARTITIONS = [SourcePartition("t", number) for number in range(2)]
SETTINGS = ReorderSettings.model_validate(
    {
        "input_topics": ["t"],
        "output_topic": "ordered",
        "checkpoint": "none",
        "event_time": "json:at",
        "delay": "auto",
    }
)
Row = tuple[int, int, Any]
"""Partition, timestamp and event time."""


def _disorder(partitions: int = 1, keys: KeyTimes | None = None) -> Disorder:
    return Disorder(SETTINGS, PARTITIONS[:partitions], keys)


def _measured(rows: list[Row], partitions: int = 1) -> DisorderReport:
    disorder = _disorder(partitions)
    for partition, timestamp_ms, time in rows:
        disorder.observe(
            PARTITIONS[partition],
            timestamp_ms=timestamp_ms,
            key=None,
            value=json.dumps({"at": time}).encode(),
            headers=(),
        )
    return disorder.report()


def _delay(report: DisorderReport, delay_ms: int) -> DelayOutcome:
    return next(one for one in report.delays if one.delay_ms == delay_ms)


def test_lateness_is_told_by_its_quantiles() -> None:
    """One record in a hundred is late: p99 is 0 still, p99.9 is not."""
    late_ms = {n: 2_000 if n % 100 == 99 else 0 for n in range(1_000)}
    report = _measured([(0, T0 + n, T0 + n - ms) for n, ms in late_ms.items()])
    found = report.partitions[0]
    assert (found.records, found.unusable) == (1_000, 0)
    assert (found.p50_ms, found.p99_ms) == (0, 0)
    assert found.most_ms == 1_999
    assert 1_999 * 0.91 < found.p99_9_ms <= 1_999
    assert found == report.together
    assert [one.late for one in report.delays] == [10, 0, 0, 0]
    assert [one.share for one in report.delays] == [0.99, 1, 1, 1]


def test_the_shortest_delay_that_meets_the_target_is_proposed() -> None:
    """The delay is longer than needed by a bin at most, and its share is counted exactly."""
    report = _measured([(0, T0 + n, T0 + n - (3_000 if n % 10 else 0)) for n in range(1_000)])
    assert report.proposed is not None
    assert 2_991 <= report.proposed.delay_ms <= 3_000 * 1.1
    assert (report.proposed.late, report.proposed.share) == (0, 1)
    in_order = _measured([(0, T0 + n, T0 + n) for n in range(10)])
    assert in_order.proposed is not None
    assert (in_order.proposed.delay_ms, in_order.proposed.late) == (100, 0)


def test_no_delay_is_proposed_for_what_none_puts_in_order() -> None:
    """A device that is an hour slow would have all others wait for nothing."""
    report = _measured(
        [(0, T0 + n, T0 + n - (3_600_000 if n % 10 == 9 else 500 * (n % 2))) for n in range(1_000)]
    )
    assert report.proposed is not None
    assert 490 <= report.proposed.delay_ms <= 600
    assert report.proposed.late == 100
    assert report.partitions[0].most_ms > 3_599_000


def test_the_frontier_waits_for_the_slowest_partition_until_it_is_idle() -> None:
    """A row is late against the partition furthest behind, and against all when it is silent."""
    rows = [(0, T0, T0), (1, T0, T0 - 60_000), (0, T0 + 10, T0 - 5_000)]
    assert _measured(rows, 2).together.most_ms == 0
    assert _measured([*rows, (0, T0 + 29_999, T0 - 5_000)], 2).together.most_ms == 0
    assert _measured([*rows, (0, T0 + 30_009, T0 - 5_000)], 2).together.most_ms == 5_000


def test_what_went_out_when_all_were_idle_is_late_with_any_delay() -> None:
    """As in the job, which holds nothing any more by then."""
    report = _measured([(0, T0, T0), (0, T0 + 31_000, T0 - 10)])
    assert [one.late for one in report.delays] == [1] * len(SHOWN_DELAYS_MS)
    assert report.proposed is not None
    assert report.proposed.late == 1


@pytest.mark.promise("cli-measure-unusable")
def test_records_without_a_usable_event_time_are_counted_by_reason() -> None:
    """They move no clock, and the fields that they have are told."""
    report = _measured(
        [(0, T0, T0), (0, T0, T0 + 3_600_000), (0, T0, 5), (0, T0, "soon"), (0, T0 + 1, T0 + 1)]
    )
    assert report.quarantined == {
        "event-time-too-far-future": 1,
        "event-time-too-early": 1,
        "event-time-unparsable": 1,
    }
    assert (report.records, report.usable, report.together.unusable) == (5, 2, 3)
    assert report.together.most_ms == 0
    disorder = _disorder()
    disorder.observe(PARTITIONS[0], timestamp_ms=T0, key=None, value=b'{"ts":1,"b":2}', headers=())
    report = disorder.report()
    assert report.advice == (
        "event-time-missing: event_time = 'json:at', and they have the fields ts, b"
    )
    assert (report.usable, report.proposed, list(report.delays)) == (0, None, [])
    json.dumps(report.as_json())


def test_a_topic_without_records_gives_an_empty_report() -> None:
    """No quantile and no share is made of nothing."""
    report = _disorder(2).report()
    assert (report.records, report.first_ms, report.proposed) == (0, None, None)
    assert report.together.most_ms == 0


@pytest.mark.promise("cli-measure-memory")
def test_of_more_keys_than_are_followed_late_records_are_estimated() -> None:
    """What is known stays bounded, and the estimate is near what following all keys gives."""
    chance = random.Random(1)
    few, all_keys = KeyTimes(most_keys=200, most_times=800), KeyTimes()
    reports = []
    rows = [
        (f"k{chance.randrange(300)}".encode(), T0 + 20 * n, chance.choice([0, 0, 1_500, 4_000]))
        for n in range(1_500)
    ]
    for keys in (few, all_keys):
        disorder = _disorder(keys=keys)
        for key, now_ms, late_ms in rows:
            disorder.observe(
                PARTITIONS[0],
                timestamp_ms=now_ms,
                key=key,
                value=f'{{"at":{now_ms - late_ms}}}'.encode(),
                headers=(),
            )
            assert len(keys) <= 800 or keys is all_keys
        reports.append(disorder.report())
    estimated, exact = reports
    assert (exact.keys_followed, estimated.keys_followed > 1) == (1, True)
    behind = [one.late + one.rescued for one in exact.delays]
    assert [one.late + one.rescued for one in estimated.delays] == behind
    assert 0.5 < _delay(estimated, 1_000).late / _delay(exact, 1_000).late < 2


def test_one_key_with_very_many_times_stays_bounded() -> None:
    """Every second time is forgotten; the newest that is out is kept."""
    keys = KeyTimes(most_keys=10, most_times=100)
    for n in range(10_000):
        keys.add(b"k", n, out_ms=-1, horizon_ms=-1)
        assert len(keys) <= 100
    known = keys.of(b"k")
    assert known is not None
    assert known[-1] == 9_999
    keys.add(b"k", 10_000, out_ms=9_999, horizon_ms=-1)
    assert list(keys.of(b"k") or ()) == [9_999, 10_000]


@pytest.mark.promise("cli-measure-interrupted")
def test_ctrl_c_ends_the_reading_with_what_was_read() -> None:
    """The report is of the records up to there."""
    disorder, spans = _disorder(), {PARTITIONS[0]: (0, 9)}

    def until_interrupted() -> Iterator[tuple[SourcePartition, LogRecord]]:
        for n in range(3):
            yield PARTITIONS[0], LogRecord(n, T0 + n, None, b'{"at":%d}' % (T0 + n), ())
        raise KeyboardInterrupt

    assert read_into(disorder, until_interrupted(), spans)
    assert disorder.report().usable == 3
    assert not read_into(_disorder(), iter(()), spans)

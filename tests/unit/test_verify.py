"""The check of a topic counts what is out of order, missing or there twice, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer import EVENT_ID_HEADER, encode_event_id
from sequitur._topic_reader import TopicRecord
from sequitur.verify import ProducerReport, TopicCheck, TopicReport


def _record(
    offset: int,
    event_time_ms: int | None = 0,
    *,
    key: bytes | None = b"k",
    partition: int = 0,
    event_id: bytes | None = None,
) -> TopicRecord:
    value = None if event_time_ms is None else b"%d" % event_time_ms
    headers = () if event_id is None else ((EVENT_ID_HEADER, event_id),)
    return TopicRecord(partition, offset, 0, key, value, headers)


def _event_time(record: TopicRecord) -> int | None:
    return None if record.value is None else int(record.value)


def _check(*records: TopicRecord, truncated: bool = False) -> TopicReport:
    return TopicCheck("t", _event_time, truncated=truncated).observe_all(records).report()


def test_a_record_older_than_an_earlier_one_of_its_key_is_an_inversion() -> None:
    """Every record behind its key's maximum counts, equal times do not."""
    report = _check(*(_record(i, t) for i, t in enumerate([1, 4, 3, 3, 4, 9, 2])))
    assert report.event_inversions == 3
    assert not report.holds


def test_keys_are_in_order_on_their_own() -> None:
    """Two keys that run at different times are no inversion, but the partition has one."""
    report = _check(_record(0, 10, key=b"a"), _record(1, 5, key=b"b"), _record(2, 11, key=b"a"))
    assert (report.event_inversions, report.partition_inversions, report.keys) == (0, 1, 2)
    assert report.holds


def test_a_record_without_event_time_is_counted_and_breaks_nothing() -> None:
    """What cannot be placed in time is told, not guessed."""
    report = _check(_record(0, 5), _record(1, None), _record(2, 6))
    assert (report.without_event_time, report.event_inversions) == (1, 0)


def test_gaps_and_repeats_are_found_over_all_partitions() -> None:
    """Sequences 0, 1, 1, 3 of one producer over two partitions: 2 is missing, 1 is there twice."""
    report = _check(
        _record(0, event_id=encode_event_id("p", 0)),
        _record(1, event_id=encode_event_id("p", 3)),
        _record(0, partition=1, event_id=encode_event_id("p", 1)),
        _record(1, partition=1, event_id=encode_event_id("p", 1)),
    )
    assert report.producers == (
        ProducerReport("p", events=4, first_sequence=0, last_sequence=3, missing=1, repeated=1),
    )
    assert (report.missing, report.repeated, report.send_inversions) == (1, 1, 0)
    assert not report.holds


def test_a_lost_beginning_is_a_gap_unless_the_topic_was_truncated() -> None:
    """Sequences count from 0, but what retention has removed is not lost."""
    records = [_record(0, event_id=encode_event_id("p", 7))]
    assert _check(*records).missing == 7
    assert _check(*records, truncated=True).missing == 0


def test_a_record_sent_before_an_earlier_one_is_out_of_send_order() -> None:
    """A retry that overtakes shows in the sequences of one partition."""
    report = _check(
        *(_record(i, event_id=encode_event_id("p", s)) for i, s in enumerate([0, 2, 1]))
    )
    assert report.send_inversions == 1
    assert not report.holds


@pytest.mark.parametrize("event_id", [None, b"", b"foreign"])
def test_records_of_foreign_producers_are_counted(event_id: bytes | None) -> None:
    """Without an event id nothing can be said of gaps, and the report says so."""
    report = _check(_record(0, event_id=event_id))
    assert (report.without_event_id, report.producers) == (1, ())


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=60))
def test_sorted_by_event_time_there_is_never_an_inversion(rows: list[tuple[int, int]]) -> None:
    """A stable sort of any records by event time leaves each key in order."""
    ordered = sorted(rows, key=lambda row: row[1])
    report = _check(*(_record(i, t, key=b"%d" % k) for i, (k, t) in enumerate(ordered)))
    assert report.event_inversions == 0
    assert report.partition_inversions == 0


@given(st.lists(st.integers(0, 30), min_size=1, max_size=80))
def test_missing_and_repeated_agree_with_plain_counting(sequences: list[int]) -> None:
    """The vectorised count equals the one by sets."""
    report = _check(
        *(_record(i, event_id=encode_event_id("p", s)) for i, s in enumerate(sequences))
    )
    assert report.missing == max(sequences) + 1 - len(set(sequences))
    assert report.repeated == len(sequences) - len(set(sequences))

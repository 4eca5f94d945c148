"""The check of a topic counts what is out of order, missing or there twice, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.cli.topic_reader import TopicRecord
from sequitur.cli.verify import Order, ProducerReport, TopicCheck, TopicReport
from sequitur.kafka.records import encode_event_id
from sequitur.producer import EVENT_ID_HEADER


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


def test_gaps_and_duplicates_are_found_over_all_partitions() -> None:
    """Sequences 0, 1, 1, 3 of one producer over two partitions: 2 is missing, 1 is there twice."""
    report = _check(
        _record(0, event_id=encode_event_id("p", 0)),
        _record(1, event_id=encode_event_id("p", 3)),
        _record(0, partition=1, event_id=encode_event_id("p", 1)),
        _record(1, partition=1, event_id=encode_event_id("p", 1)),
    )
    assert report.producers == (
        ProducerReport("p", events=4, first_sequence=0, last_sequence=3, missing=1, duplicates=1),
    )
    assert (report.missing, report.duplicates, report.send_inversions) == (1, 1, 0)
    assert not report.holds


def _ids(*ids: tuple[str, int]) -> TopicReport:
    encoded = [encode_event_id("p", sequence, generation) for generation, sequence in ids]
    return _check(*(_record(i, event_id=event_id) for i, event_id in enumerate(encoded)))


@pytest.mark.promise("in-processes-hold-copies")
def test_sequences_go_on_over_generations() -> None:
    """A producer with a journal counts over its lives: gaps are those of all of them together."""
    report = _ids(("0000000a", 0), ("0000000a", 1), ("0000000b", 2), ("0000000b", 4))
    assert report.producers == (
        ProducerReport("p", 4, first_sequence=0, last_sequence=4, missing=1, duplicates=0,
                       generations=2),
    )  # fmt: skip


@pytest.mark.promise("in-processes-hold-copies")
def test_the_same_sequence_of_two_generations_is_no_duplicate_but_two_holders() -> None:
    """A journal that was put back from a copy, or two hosts on copies, give a sequence twice."""
    report = _ids(("0000000a", 0), ("0000000a", 1), ("0000000b", 1), ("0000000b", 1))
    (found,) = report.producers
    assert (found.missing, found.duplicates, found.shared) == (0, 1, 1)


@pytest.mark.promise("in-processes-hold-copies")
def test_lives_without_a_journal_are_counted_by_themselves() -> None:
    names = ("p~~0000000a", "p~~0000000b")
    ids = [encode_event_id(name, sequence) for name in names for sequence in (0, 1)]
    report = _check(*(_record(i, event_id=event_id) for i, event_id in enumerate(ids)))
    assert [found.producer for found in report.producers] == list(names)
    assert report.holds


@pytest.mark.parametrize(
    ("ids", "inversions"),
    [
        ([("0000000a", 0), ("0000000b", 2), ("0000000a", 1)], 1),  # overtaken by its next life
        ([("0000000a", 0), ("0000000a", 5), ("0000000b", 3), ("0000000b", 4)], 0),  # from a copy
        ([("0000000a", 3), ("0000000b", 3), ("0000000a", 4), ("0000000b", 4)], 0),  # two holders
        ([("0000000a", 3), ("0000000b", 4), ("0000000b", 3)], 1),
    ],
)
def test_send_order_is_that_of_each_generation_and_of_one_behind_the_other(
    ids: list[tuple[str, int]], inversions: int
) -> None:
    """What a former life left goes out before what the next one accepts."""
    assert _ids(*ids).send_inversions == inversions


def test_a_lost_beginning_is_a_gap_unless_the_topic_was_truncated() -> None:
    """Sequences count from 0, but what retention has removed is not lost."""
    records = [_record(0, event_id=encode_event_id("p", 7))]
    assert _check(*records).missing == 7
    assert _check(*records, truncated=True).missing == 0


@pytest.mark.promise("cli-sequitur-verify-finds")
def test_what_went_to_another_topic_is_a_gap_that_says_so_or_is_found_there() -> None:
    """A producer counts over all its topics: one topic alone does not tell loss from absence."""
    here = [_record(i, event_id=encode_event_id("p", s)) for i, s in enumerate([0, 2, 5])]
    there = [_record(i, event_id=encode_event_id("p", s)) for i, s in enumerate([1, 3])]
    alone = _check(*here)
    (problem,) = alone.problems
    assert problem.startswith(
        "p: 3 of its events up to sequence 5 are not in t: they were lost, or"
    )
    assert problem.endswith("went to another topic (name it with --also)")
    check = TopicCheck("t", _event_time, also=("other",)).observe_all(here)
    for record in there:
        check.observe_elsewhere(record)
    (problem,) = check.report().problems
    assert problem.startswith("p: 1 of its events up to sequence 5 are not in t or other: ")
    assert check.report().records == 3


@pytest.mark.promise("cli-sequitur-verify-finds")
def test_an_event_in_a_further_topic_too_is_there_twice() -> None:
    """What is aside must not be out as well."""
    check = TopicCheck("t", _event_time, also=("late",))
    check.observe(_record(0, event_id=encode_event_id("p", 0)))
    check.observe_elsewhere(_record(0, event_id=encode_event_id("p", 0)))
    assert check.report().problems == ("p: 1 record is duplicated",)


@pytest.mark.promise("cli-sequitur-verify-reads")
def test_an_empty_topic_does_not_hold() -> None:
    """Nothing was checked, so nothing was found to be right."""
    report = _check()
    assert report.problems == ("the topic is empty: there is nothing to check",)
    assert not report.holds


@pytest.mark.promise("cli-topic-order")
@pytest.mark.parametrize(
    ("order", "problems"),
    [
        (Order.EVENT, ("2 records are older than an earlier one of the key",)),
        (Order.SEND, ("1 record is after one that was sent later",)),
    ],
)
def test_a_topic_is_in_one_order_or_the_other(order: Order, problems: tuple[str, ...]) -> None:
    """Both are counted; what is expected is judged."""
    rows = [(0, 5), (2, 3), (1, 4), (3, 9)]
    check = TopicCheck("t", _event_time, order=order)
    for offset, (sequence, at) in enumerate(rows):
        check.observe(_record(offset, at, event_id=encode_event_id("p", sequence)))
    report = check.report()
    assert (report.event_inversions, report.send_inversions) == (2, 1)
    assert report.problems == problems


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
def test_missing_and_duplicates_agree_with_plain_counting(sequences: list[int]) -> None:
    report = _check(
        *(_record(i, event_id=encode_event_id("p", s)) for i, s in enumerate(sequences))
    )
    assert report.missing == max(sequences) + 1 - len(set(sequences))
    assert report.duplicates == len(sequences) - len(set(sequences))

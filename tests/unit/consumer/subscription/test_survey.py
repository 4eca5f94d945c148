"""What periodic checks judge by: backlogs of a survey, and the acks that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.registry import (
    Registry,
    SubscriptionRecord,
    SubscriptionType,
)
from sequitur.consumer.subscription.survey import Cuts, DueAck, Log, Survey, due_acks
from sequitur.kafka.partition import SourcePartition
from tests.support.values import replace

if TYPE_CHECKING:
    from sequitur.consumer.subscription.backlog_quota import PartitionBacklog

_HERE = SourcePartition("orders", 0)
_RECORD = SubscriptionRecord("sub1", ("orders",), SubscriptionType.EXCLUSIVE, 0, group="", epoch=2)


def _survey(
    held: PartitionCursor | None = None,
    *,
    log: Log | None = None,
    epoch: int = 2,
    record: SubscriptionRecord = _RECORD,
    oldest_ms: int | None = None,
) -> Survey:
    """One partition of 100 messages of 10 bytes, from which 20 are deleted."""
    survey = Survey(
        5_000,
        Registry({"sub1": record}),
        frozenset(),
        {_HERE: log or Log(20, 100, 800)},
    )
    if held is not None:
        survey = survey.with_held("sub1", {_HERE: held}, epoch=epoch)
    first = survey.first_unacked("sub1", _HERE)
    return survey.with_oldest({} if oldest_ms is None else {(_HERE, first): oldest_ms})


def _held(*ranges: tuple[int, int], sizes: CountedSizes | None = None) -> PartitionCursor:
    cursor = Cursor(CursorIdentity("sub1", *_HERE))
    for first, stop in ranges:
        cursor.ack_range(first, stop, end=100)
    return PartitionCursor(cursor, sizes or CountedSizes())


def test_a_subscription_without_cursor_has_acked_nothing_that_is_there() -> None:
    """What Kafka has deleted is nobody's backlog."""
    (part,) = _survey().backlog("orders").parts
    assert (part.first_unacked, part.messages, part.size_bytes) == (20, 80, 800)


def test_a_topic_without_logs_has_no_partitions() -> None:
    """As one that was deleted when its subscription was made: it has no backlog either."""
    survey = _survey()
    assert survey.partitions("gone") == []
    assert survey.backlog("gone").parts == ()


def test_acks_of_an_epoch_that_is_over_do_not_count() -> None:
    """A reset is under way: nothing is deleted by them, and nothing is acked meanwhile."""
    survey = _survey(_held((0, 100)), epoch=1)
    assert survey.is_being_reset(_RECORD)
    assert survey.first_unacked("sub1", _HERE) == 20
    assert due_acks(survey, _RECORD, Cuts({_HERE: 50}, {_HERE: 50})) == []


@pytest.mark.promise("sub-topic-quota-holds")
def test_bytes_are_those_of_the_log() -> None:
    """Compressed, as they are stored: what was read weighs as much as what was not."""
    sizes = CountedSizes(40).read(60, 7_000_000)
    for ranges, expected in (((0, 30), 700), ((0, 50), 500), ((0, 70), 300), ((0, 100), 0)):
        for held in (_held(ranges, sizes=sizes), _held(ranges)):
            (part,) = _survey(held).backlog("orders").parts
            assert part.size_bytes == expected


def test_the_logs_bytes_are_shared_out_by_what_was_counted() -> None:
    sizes = CountedSizes(20).read(60, 7_000).read(80, 1_000)
    for ranges, expected in (((0, 20), 800), ((0, 40), 537), ((0, 60), 275), ((0, 80), 200)):
        (part,) = _survey(_held(ranges, sizes=sizes)).backlog("orders").parts
        # In all 8,000 bytes and 20 messages of 133: 10,667, stored as 800.
        assert part.size_bytes == pytest.approx(expected, abs=1)
    backlogs = (_survey(_held((0, at), sizes=sizes)).backlog("orders") for at in range(20, 101))
    behind = [one.size_bytes for one in backlogs]
    assert behind == sorted(behind, reverse=True)
    assert (behind[0], behind[-1]) == (800, 0)


def test_where_no_broker_tells_what_was_read_is_counted() -> None:
    """Without the right to describe log directories, too; nothing is known of what nobody read."""
    sizes = CountedSizes(40).read(60, 7_000)
    (part,) = _survey(_held((0, 50), sizes=sizes), log=Log(20, 100)).backlog("orders").parts
    assert part.size_bytes == 3_500 + 40 * 350
    (part,) = _survey(_held((0, 50)), log=Log(20, 100)).backlog("orders").parts
    assert part.size_bytes == 0


def _job(read: int, *, most: int | None = 1 << 40, standing: bool = False) -> PartitionBacklog:
    """Return the backlog of a job that has read so far, and acked up to 30."""
    held = _held((0, 30))
    held.cursor.seek(read, end=100)
    record = replace(_RECORD, max_held_bytes=most)
    survey = replace(
        _survey(held, record=record),
        jobs={"sub1": 7},
        standing=frozenset({"sub1"} if standing else ()),
        older_than_ms={(_HERE, 30): 1_000, (_HERE, read): 3_000},
    )
    assert survey.places()[_HERE] >= {30}
    (part,) = survey.backlog("orders").parts
    assert part.size_bytes == 700
    return part


@pytest.mark.promise("sub-topic-quota-holds")
def test_a_job_holds_what_it_has_read_and_not_acked() -> None:
    """At most as much as it may, and nothing while its frontier stands still."""
    part = _job(90)
    assert (part.held_to, part.held_bytes, part.unheld.size_bytes) == (90, 600, 100)
    assert (part.unheld.first_unacked, part.unheld.messages) == (90, 10)
    assert (part.oldest_ms, part.unheld.oldest_ms) == (999, 2_999)
    part = _job(90, most=300)
    assert (part.held_to, part.held_bytes, part.unheld.size_bytes) == (60, 300, 400)
    for none in (_job(90, standing=True), _job(90, most=None)):
        assert none.unheld is none
    assert _job(20).held_bytes == 0


def test_a_job_has_caught_up_once_it_has_read_all_partitions() -> None:
    """Its frontier then waits for events, and is not said to stand still."""
    held = _held((0, 30))
    for read, caught_up in ((99, set[str]()), (100, {"sub1"})):
        held.cursor.seek(read, end=100)
        assert replace(_survey(held), jobs={"sub1": 7}).caught_up == caught_up


def test_a_log_that_is_smaller_than_the_cursor_has_no_backlog() -> None:
    """The topic was made anew, or the ends were asked before."""
    (part,) = _survey(_held((0, 100)), log=Log(0, 60, 600)).backlog("orders").parts
    assert (part.messages, part.size_bytes) == (0, 0)


def test_expired_messages_come_before_evicted_ones() -> None:
    """Each is counted once, and what is acked already is not counted; nothing is changed."""
    held = _held((30, 40))
    survey = _survey(held)
    due = due_acks(survey, _RECORD, Cuts({_HERE: 70}, {_HERE: 50}))
    assert [(one.first, one.stop, one.messages, one.why) for one in due] == [
        (20, 50, 20, FindingKind.EXPIRED_MESSAGES),
        (50, 70, 20, FindingKind.EVICTED),
    ]
    assert due[1].sentence == (
        "partition 0: 20 messages from 50 to before 70 are acked and not processed"
    )
    assert held.cursor.committed_offset == 0
    only = due_acks(survey, _RECORD, Cuts({_HERE: 40}, {_HERE: 50}))
    assert [one.why for one in only] == [FindingKind.EXPIRED_MESSAGES]
    assert due_acks(survey, _RECORD, Cuts({_HERE: 20}, {_HERE: 20})) == []


def test_a_reset_pins_against_expiry_and_not_against_eviction() -> None:
    """Storage is limited, whatever was asked for."""
    record = SubscriptionRecord(
        "sub1", ("orders",), SubscriptionType.EXCLUSIVE, 0, group="", epoch=2, reset_ms=4_000
    )
    cuts = Cuts({_HERE: 30}, {_HERE: 50})
    pinned = _survey(_held((0, 20)), record=record, oldest_ms=3_999)
    assert [one.why for one in due_acks(pinned, record, cuts)] == [FindingKind.EVICTED]
    free = _survey(_held((0, 20)), record=record, oldest_ms=4_000)
    assert [one.why for one in due_acks(free, record, cuts)] == [FindingKind.EXPIRED_MESSAGES]


def test_nothing_is_due_where_no_policy_says_so() -> None:
    """The first message of all, at offset 0, does not expire without a time to live."""
    survey = _survey(_held(), log=Log(0, 100, 1_000))
    assert due_acks(survey, _RECORD, Cuts()) == []
    (only,) = due_acks(survey, _RECORD, Cuts({_HERE: 7}))
    assert only == DueAck("sub1", "orders", 0, 0, 7, 7, FindingKind.EVICTED)


def test_cursors_that_cannot_be_read_are_left_alone() -> None:
    """Nothing is acked for them, and they hold no producer back."""
    survey = replace(_survey(), damaged={"sub1": "the checksum is wrong"})
    assert due_acks(survey, _RECORD, Cuts({_HERE: 50}, {_HERE: 50})) == []
    assert survey.backlog("orders").parts == ()


@pytest.mark.promise("sub-something-subscription-partition")
def test_cursors_of_an_earlier_topic_are_left_alone() -> None:
    """All of the topic that has its name now is unacked and kept, and no producer of it waits."""
    survey = _survey(_held((0, 50)))
    assert due_acks(survey, _RECORD, Cuts({_HERE: 70}, {_HERE: 60}))
    gone = replace(survey, of_gone_logs=frozenset({("sub1", _HERE)}))
    assert due_acks(gone, _RECORD, Cuts({_HERE: 70}, {_HERE: 60})) == []
    assert (survey.needed_from("sub1", _HERE), gone.needed_from("sub1", _HERE)) == (50, 20)
    assert gone.settled_backlog("orders").parts == ()


@pytest.mark.promise("sub-something-subscription-partition")
def test_other_partitions_of_an_earlier_topic_go_on() -> None:
    there = SourcePartition("orders", 1)
    held = {one: PartitionCursor.begin(CursorIdentity("sub1", *one), 20) for one in (_HERE, there)}
    logs = dict.fromkeys(held, Log(20, 100, 800))
    survey = Survey(5_000, Registry({"sub1": _RECORD}), frozenset(), logs)
    survey = survey.with_held("sub1", held, epoch=2)
    gone = replace(survey, of_gone_logs=frozenset({("sub1", _HERE)}))
    (due,) = due_acks(gone, _RECORD, Cuts(alive_from=dict.fromkeys(held, 60)))
    assert (due.partition, due.messages) == (1, 40)
    settled = gone.settled_backlog("orders")
    assert (settled.topic, [one.partition for one in settled.parts]) == ("orders", [1])


def test_first_messages_are_those_of_the_named_subscriptions() -> None:
    """One that has acked all has none."""
    other = replace(_RECORD, name="sub2")
    registry = Registry({"sub1": _RECORD, "sub2": other})
    survey = replace(_survey(_held((0, 30))), registry=registry)
    assert survey.places() == {_HERE: {20, 30}}
    assert survey.places(["sub1"]) == {_HERE: {30}}
    assert _survey(_held((0, 100))).places() == {_HERE: set()}


def test_an_empty_partition_has_a_backlog_of_0_bytes() -> None:
    """Retention has deleted everything, and Kafka keeps an empty file."""
    for log in (Log(0, 0, 0), Log(100, 100, 70)):
        (part,) = _survey(_held((0, 100)), log=log).backlog("orders").parts
        assert (part.messages, part.size_bytes) == (0, 0)


def test_estimated_bytes_are_whole() -> None:
    """Documents and quotas count in whole bytes; three messages of 33 and a third."""
    size = _survey(_held((0, 1)), log=Log(0, 3, 100)).backlog("orders").size_bytes
    assert (size, type(size)) == (66, int)


def test_each_partition_of_each_topic_has_its_own_cursor() -> None:
    """In the order of their numbers; the backlog names the place it is of."""
    places = [SourcePartition("orders", 1), _HERE, SourcePartition("bills", 0)]
    record = replace(_RECORD, topics=("orders", "bills"))
    cursors = {where: Cursor(CursorIdentity("sub1", *where)) for where in places}
    for acked, cursor in enumerate(cursors.values(), start=1):
        cursor.ack_range(0, acked, end=10)
    held = {where: PartitionCursor(one, CountedSizes()) for where, one in cursors.items()}
    survey = Survey(
        5_000, Registry({"sub1": record}), frozenset(), dict.fromkeys(places, Log(0, 10, 100))
    ).with_held("sub1", held, epoch=2)
    assert survey.topics() == ["bills", "orders"]
    assert survey.cursors("sub1", "orders") == [cursors[_HERE], cursors[places[0]]]
    backlog = survey.backlog("orders")
    assert backlog.topic == "orders"
    assert [(one.topic, one.partition, one.messages) for one in backlog.parts] == [
        ("orders", 0, 8),
        ("orders", 1, 9),
    ]
    due = due_acks(survey, record, Cuts(alive_from=dict.fromkeys(places, 5)))
    assert [(one.topic, one.partition, one.messages) for one in due] == [
        ("orders", 0, 3),
        ("orders", 1, 4),
        ("bills", 0, 2),
    ]


@pytest.mark.promise("sub-topic-retention-somebody")
def test_what_was_deleted_and_not_acked_is_lost_at_most() -> None:
    """Offsets 0 to 19 are deleted, five of them were acked; a job holds what it has read."""
    held = _held((5, 10))
    held.cursor.ack_lost(0, 2, end=100)
    survey = _survey(held)
    assert (survey.deleted_unacked("sub1", _HERE), survey.lost("sub1", _HERE)) == (13, 15)
    held.cursor.seek(15, end=100)
    of_job = replace(_survey(held), jobs={"sub1": 0})
    assert (of_job.deleted_unacked("sub1", _HERE), of_job.lost("sub1", _HERE)) == (5, 7)
    unknown = replace(_survey(held), of_gone_logs=frozenset({("sub1", _HERE)}))
    assert unknown.deleted_unacked("sub1", _HERE) == 0
    assert _survey(held, epoch=1).lost("sub1", _HERE) == 0


@pytest.mark.promise("sub-something-subscription-partition")
def test_a_reset_that_is_not_finished_holds_no_producer() -> None:
    """What it will have acked is not known; its messages are kept."""
    survey = _survey(_held((0, 100)), epoch=3)
    assert survey.settled_backlog("orders").parts == ()
    assert survey.needed_from("sub1", _HERE) == 20
    (part,) = _survey(_held((0, 50))).settled_backlog("orders").parts
    assert part.messages == 50

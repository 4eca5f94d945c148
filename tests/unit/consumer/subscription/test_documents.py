"""The documents of subscriptions: Pulsar's names, and the figures of the article."""

from __future__ import annotations

from typing import Any

import pytest

from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.inspection import (
    Publisher,
    Sight,
    internal_document,
    listed,
    moment,
    stats_document,
)
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.position import Position
from sequitur.consumer.subscription.registry import (
    Registry,
    SubscriptionRecord,
    SubscriptionType,
)
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.consumer.subscription.survey import Log, Survey
from sequitur.kafka.partition import SourcePartition
from tests.support.values import replace

_HERE = SourcePartition("my-topic", 0)
_RECORD = SubscriptionRecord("sub1", ("my-topic",), SubscriptionType.SHARED, 1_000_000, group="")


def _held(
    *ranges: tuple[int, int], read: int = 0, sizes: CountedSizes | None = None
) -> PartitionCursor:
    cursor = Cursor(CursorIdentity("sub1", *_HERE))
    for first, stop in ranges:
        cursor.ack_range(first, stop, end=1 << 20)
    cursor.seek(read, end=1 << 20)
    return PartitionCursor(cursor, sizes or CountedSizes())


def _sight(
    held: PartitionCursor | None,
    *,
    log: Log | None = None,
    state: SubscriptionState | None = None,
    connected: bool = False,
    **options: Any,
) -> Sight:
    state = state or SubscriptionState()
    survey = Survey(
        2_000_000,
        Registry({"sub1": _RECORD}),
        frozenset({"sub1"} if connected else ()),
        {_HERE: log or Log(0, 20, 4_000)},
    )
    if held is not None:
        survey = survey.with_held("sub1", {_HERE: held}, epoch=state.epoch)
    first = survey.first_unacked("sub1", _HERE)
    if first < survey.logs[_HERE].end:
        survey = survey.with_oldest({(_HERE, first): 1_940_000})
    return Sight(survey, {"sub1": state}, **options)


def _cursor_document(sight: Sight) -> dict[str, Any]:
    found: dict[str, Any] = internal_document(sight, "my-topic")["partitions"]["my-topic-0"]
    document: dict[str, Any] = found["cursors"]["sub1"]
    return document


_ARTICLE = _held((0, 4), (5, 9), (10, 14), (15, 20), read=20, sizes=CountedSizes().read(20, 3_840))


def test_the_articles_stats() -> None:
    """Three of 20 messages of 192 bytes are open, and 16 of them cannot be deleted."""
    document = stats_document(_sight(_ARTICLE), "my-topic")
    assert document == {
        "backlogSize": 3200,
        "backlogSizeIsEstimate": True,
        "msgInCounter": 20,
        "storageSize": 4_000,
        "oldestBacklogMessageAgeSeconds": 60,
        "oldestBacklogMessageSubscriptionName": "sub1",
        "subscriptions": {
            "sub1": {
                "msgBacklog": 3,
                "backlogSize": 3200,
                "heldSize": 0,
                "unackedMessages": 3,
                "lostAtMost": 0,
                "type": "Shared",
                "isDurable": True,
                "ownerSeenSecondsAgo": None,
                "epoch": 0,
                "earliestMsgPublishTimeInBacklog": 1_940_000,
            }
        },
    }


def test_the_articles_stats_internal() -> None:
    state = SubscriptionState(step=7, frontier_ms=1_500, written_ms=1_700_000_000_123)
    places = {("sub1", _HERE): Position(3, 17)}
    sight = _sight(_ARTICLE, state=state, connected=True, places=places)
    document = _cursor_document(sight)
    expected = {
        "markDeletePosition": "0:3",
        "readPosition": "0:20",
        "waitingReadOp": True,
        "messagesConsumedCounter": 17,
        "cursorLedger": 3,
        "cursorLedgerLastEntry": 17,
        "individuallyDeletedMessages": "[(0:4..0:8], (0:9..0:13], (0:14..0:19]]",
        "state": "Open",
        "numberOfEntriesSinceFirstNotAckedMessage": 17,
        "totalNonContiguousDeletedMessagesRange": 3,
        "msgBacklog": 3,
        "written": "2023-11-14T22:13:20.123+00:00",
        "step": 7,
    }
    assert {name: document[name] for name in expected} == expected
    assert "pendingReadOps" not in document
    partition = internal_document(sight, "my-topic")["partitions"]["my-topic-0"]
    assert partition["lastConfirmedEntry"] == "0:19"
    assert (partition["numberOfEntries"], partition["entriesAddedCounter"]) == (20, 20)


def test_a_caught_up_cursor_shows_1() -> None:
    document = _cursor_document(_sight(_held((0, 20))))
    assert document["numberOfEntriesSinceFirstNotAckedMessage"] == 1
    assert document["msgBacklog"] == 0
    stats = stats_document(_sight(_held((0, 20))), "my-topic")
    assert stats["backlogSize"] == 0
    assert "oldestBacklogMessageAgeSeconds" not in stats


def test_what_is_not_stored_and_what_is_being_reset() -> None:
    """Neither has acked anything that counts; their states say so."""
    unstored = _cursor_document(_sight(None))
    assert (unstored["state"], unstored["msgBacklog"]) == ("NoLedger", 20)
    reset = _cursor_document(_sight(_ARTICLE, state=SubscriptionState(epoch=1)))
    assert (reset["state"], reset["msgBacklog"]) == ("Uninitialized", 20)


def test_a_cursor_that_has_acked_more_than_there_is() -> None:
    """The topic was deleted and made anew: it is shown, and not refused."""
    document = _cursor_document(_sight(_held((0, 4), (6, 30)), log=Log(0, 5)))
    assert document["markDeletePosition"] == "0:3"
    assert document["msgBacklog"] == 2


def test_a_log_without_a_size_has_none() -> None:
    """Who may not ask brokers for it is not told 0."""
    sight = _sight(_held((0, 4)), log=Log(0, 20))
    assert "storageSize" not in stats_document(sight, "my-topic")
    assert "totalSize" not in internal_document(sight, "my-topic")["partitions"]["my-topic-0"]


def test_rates_are_those_between_two_writings() -> None:
    """10 of 20 messages of 200 bytes, and 4 repeated, in 2 seconds."""
    before = _sight(_held((0, 4)), state=SubscriptionState(written_ms=10_000, repeated=1))
    after = _sight(_held((0, 14)), state=SubscriptionState(written_ms=12_000, repeated=5))
    document = stats_document(after, "my-topic", before=before)["subscriptions"]["sub1"]
    assert document["msgRateOut"] == pytest.approx(5.0)
    assert document["msgThroughputOut"] == pytest.approx(1_000.0)
    assert document["msgRateRedeliver"] == pytest.approx(2.0)


def test_there_are_no_rates_without_two_writings_of_one_epoch() -> None:
    """Nothing stored meanwhile is a rate of 0; a reset between them leaves nothing to compare."""
    one = _sight(_held((0, 4)), state=SubscriptionState(written_ms=10_000))
    idle = stats_document(one, "my-topic", before=one)["subscriptions"]["sub1"]
    assert idle["msgRateOut"] == 0
    other = replace(one, states={"sub1": SubscriptionState(epoch=1, written_ms=12_000)})
    reset = stats_document(other, "my-topic", before=one)["subscriptions"]["sub1"]
    assert "msgRateOut" not in reset
    assert "msgRateOut" not in stats_document(one, "my-topic")["subscriptions"]["sub1"]


def test_publishers_are_those_that_partitions_remember() -> None:
    """Of a topic that was not asked for there is no list, and not an empty one."""
    publisher = Publisher(
        partition=0, producer_id=7, epoch=1, last_sequence=99, last_timestamp_ms=1_700_000_000_000
    )
    sight = _sight(_ARTICLE, publishers={"my-topic": [publisher]})
    assert stats_document(sight, "my-topic")["publishers"] == [
        {
            "producerId": 7,
            "producerEpoch": 1,
            "partition": 0,
            "lastSequence": 99,
            "lastTimestamp": "2023-11-14T22:13:20.000+00:00",
        }
    ]
    assert "publishers" not in stats_document(_sight(_ARTICLE), "my-topic")


def test_the_list_has_the_backlog_of_each_subscription() -> None:
    sight = _sight(_ARTICLE)
    seen = replace(sight.survey, seen_ms={"sub1": 1_988_000})
    (document,) = listed(replace(sight, survey=seen))
    assert document == {
        "name": "sub1",
        "type": "Shared",
        "topics": ["my-topic"],
        "epoch": 0,
        "ownerSeenSecondsAgo": 12,
        "created": "1970-01-01T00:16:40.000+00:00",
        "lastConnected": "1970-01-01T00:33:08.000+00:00",
        "msgBacklog": 3,
        "backlogSize": 3200,
        "oldestBacklogMessageAgeSeconds": 60,
    }


def test_what_kafka_has_deleted_is_in_no_count() -> None:
    """The log begins at 10; 15 messages of 200 bytes were acked in a second."""
    log = Log(10, 30, 4_000)
    before = _sight(_held((0, 5), read=20), log=log, state=SubscriptionState(written_ms=1_000))
    after = _sight(_held((0, 20)), log=log, state=SubscriptionState(written_ms=2_000))
    partition = internal_document(before, "my-topic")["partitions"]["my-topic-0"]
    assert (partition["numberOfEntries"], partition["entriesAddedCounter"]) == (20, 30)
    stats = stats_document(before, "my-topic")["subscriptions"]["sub1"]
    assert (stats["unackedMessages"], stats["msgBacklog"]) == (10, 20)
    rates = stats_document(after, "my-topic", before=before)["subscriptions"]["sub1"]
    assert rates["msgThroughputOut"] == pytest.approx(15 * 200)


@pytest.mark.parametrize(
    ("connected", "read", "waits"), [(True, 20, True), (True, 19, False), (False, 20, False)]
)
def test_who_waits_for_messages(*, connected: bool, read: int, waits: bool) -> None:
    document = _cursor_document(_sight(_held(read=read), connected=connected))
    assert document["waitingReadOp"] is waits


def test_the_oldest_message_of_all_partitions_and_topics_counts() -> None:
    """Its age in the list, its time in the statistics of its topic."""
    places = [SourcePartition("my-topic", 0), SourcePartition("my-topic", 1)]
    places.append(SourcePartition("other", 0))
    survey = Survey(
        2_000_000,
        Registry({"sub1": replace(_RECORD, topics=("my-topic", "other"))}),
        frozenset(),
        dict.fromkeys(places, Log(0, 20, 4_000)),
    )
    stamps = (1_940_000, 1_960_000, 1_900_000)
    oldest = {(where, 0): ms for where, ms in zip(places, stamps, strict=True)}
    sight = Sight(survey.with_oldest(oldest))
    assert listed(sight)[0]["oldestBacklogMessageAgeSeconds"] == 100
    stats = stats_document(sight, "my-topic")["subscriptions"]["sub1"]
    assert stats["earliestMsgPublishTimeInBacklog"] == 1_940_000


@pytest.mark.parametrize("time_ms", [-1, 0, 1 << 62])
def test_a_time_that_is_none_is_not_shown(time_ms: int) -> None:
    assert moment(time_ms) is None

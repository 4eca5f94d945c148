"""`sequitur subscription` on a real broker: the article's cases, and what each command does."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner, Result

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.cli.main import app
from sequitur.consumer.subscription.cursor_store import cursor_topic
from sequitur.consumer.subscription.policies import TopicPolicies
from sequitur.consumer.subscription.registry import group_of_new
from sequitur.errors import (
    PositionRangeError,
    SubscriptionExistsError,
    TopicError,
    UnknownSubscriptionError,
)
from sequitur.kafka.partition import SourcePartition
from tests.support.open_subscriptions import commit, committed, group_commit
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from tests.conftest import MakeTopic
    from tests.support.subscribed_topics import SubscribedTopics


@pytest.fixture
def orders(make_topic: MakeTopic) -> str:
    """A topic of one partition from which the broker deletes nothing."""
    return make_topic(1, retention_ms=-1)


def _run(topics: SubscribedTopics, *words: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, ["subscription", *words], env=topics.environ, input=answer)


def _shown(topics: SubscribedTopics, *words: str) -> Any:
    shown = _run(topics, *words, "--json")
    assert shown.exit_code == 0, (shown.output, shown.exception)
    return json.loads(shown.stdout)


def _done(topics: SubscribedTopics, *words: str) -> str:
    done = _run(topics, *words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def _create(topics: SubscribedTopics, name: str, topic: str) -> None:
    _done(topics, "create", name, "--topic", topic, "--position", "earliest")


def _cursor(topics: SubscribedTopics, name: str, topic: str, partition: int = 0) -> dict[str, Any]:
    document = _shown(topics, "stats-internal", name)
    found: dict[str, Any] = document[topic]["partitions"][f"{topic}-{partition}"]["cursors"][name]
    return found


def _stats(topics: SubscribedTopics, name: str, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = _shown(topics, "stats", name)[topic]
    return found


def _stored(topics: SubscribedTopics, name: str) -> StoredSubscription:
    stored = topics.surveyor.cursors.read(name)
    assert stored is not None
    return stored


def test_figures_1_and_2(topics: SubscribedTopics, orders: str) -> None:
    """Acked 0 to 3: cursor 4, backlog 4 to 9; the second has acked 0 to 6: backlog 7 to 9."""
    topics.fill(orders, 10)
    for name, stop in (("Subscription-1", 4), ("Subscription-2", 7)):
        _create(topics, name, orders)
        topics.acks(name, orders, (0, stop))
        assert _cursor(topics, name, orders)["committedOffset"] == stop
        assert _stats(topics, name, orders)["subscriptions"][name]["msgBacklog"] == 10 - stop
        peeked = _shown(topics, "peek", name, "-n", "10")
        assert [one["position"] for one in peeked] == [f"{orders}:0:{at}" for at in range(stop, 10)]
    listed = {one["name"]: one["msgBacklog"] for one in _shown(topics, "list")}
    assert listed == {"Subscription-1": 6, "Subscription-2": 3}


def test_figure_3_an_ack_hole(topics: SubscribedTopics, orders: str) -> None:
    """All but 3 are acked: one message of backlog, and everything behind it is kept for it."""
    topics.fill(orders, 10)
    _create(topics, "sub1", orders)
    topics.acks("sub1", orders, (0, 3), (4, 10))
    topics.reads("sub1", orders, 10, size=10 * 192)
    cursor = _cursor(topics, "sub1", orders)
    assert (cursor["markDeletePosition"], cursor["msgBacklog"]) == ("0:2", 1)
    assert cursor["individuallyDeletedMessages"] == "[(0:3..0:9]]"
    (peeked,) = _shown(topics, "peek", "sub1", "-n", "5")
    assert peeked["position"] == f"{orders}:0:3"
    stats = _stats(topics, "sub1", orders)
    assert stats["backlogSize"] == stats["storageSize"] * 7 // 10


def test_the_articles_stats(topics: SubscribedTopics, orders: str) -> None:
    """Mark-delete 3, read position 20, three ranges: its stats and stats-internal."""
    topics.fill(orders, 20)
    _create(topics, "sub1", orders)
    topics.acks("sub1", orders, (0, 4), (5, 9), (10, 14), (15, 20))
    topics.reads("sub1", orders, 20, size=20 * 192)
    cursor = _cursor(topics, "sub1", orders)
    assert cursor["markDeletePosition"] == "0:3"
    assert cursor["readPosition"] == "0:20"
    assert cursor["individuallyDeletedMessages"] == "[(0:4..0:8], (0:9..0:13], (0:14..0:19]]"
    assert cursor["numberOfEntriesSinceFirstNotAckedMessage"] == 17
    assert cursor["messagesConsumedCounter"] == 17
    assert cursor["totalNonContiguousDeletedMessagesRange"] == 3
    assert cursor["state"] == "Open"
    assert not cursor["waitingReadOp"]
    stats = _stats(topics, "sub1", orders)
    assert stats["backlogSize"] == stats["storageSize"] * 16 // 20
    assert stats["backlogSizeIsEstimate"]
    assert stats["subscriptions"]["sub1"]["msgBacklog"] == 3
    assert stats["subscriptions"]["sub1"]["unackedMessages"] == 3


def test_a_caught_up_cursor_shows_1(topics: SubscribedTopics, orders: str) -> None:
    """And its record is found where the document says it is."""
    topics.fill(orders, 5)
    _create(topics, "sub1", orders)
    topics.acks("sub1", orders, (0, 5))
    cursor = _cursor(topics, "sub1", orders)
    assert cursor["numberOfEntriesSinceFirstNotAckedMessage"] == 1
    consumer = Consumer({**topics.kafka.librdkafka(), "group.id": "reader"})
    try:
        place = cursor["cursorLedger"], cursor["cursorLedgerLastEntry"]
        consumer.assign([TopicPartition(cursor_topic(topics.kafka), *place)])
        (record,) = consumer.consume(1, timeout=PATIENCE_S)
        assert record.offset() == cursor["cursorLedgerLastEntry"]
        assert record.key() == f'["cursor","sub1","{orders}",0]'.encode()
    finally:
        consumer.close()


def test_producers_are_told_by_the_partitions(topics: SubscribedTopics, orders: str) -> None:
    """Those with an id, with the sequence of their last record."""
    client = Producer({**topics.kafka.librdkafka(), "enable.idempotence": True})
    for _ in range(7):
        client.produce(orders, b"x", partition=0)
    client.flush(PATIENCE_S)
    topics.subscribe("sub1", orders)
    (publisher,) = _stats(topics, "sub1", orders)["publishers"]
    assert (publisher["partition"], publisher["lastSequence"]) == (0, 6)


def test_a_subscription_begins_where_it_is_told(
    topics: SubscribedTopics, make_topic: MakeTopic
) -> None:
    """On all partitions of its topics; Kafka's tools see it at once, and so does a second one."""
    orders, bills = make_topic(2), make_topic(1)
    topics.fill(orders, 5, partition=1)
    both = ("--topic", orders, "--topic", bills)
    _done(topics, "create", "late", *both, "--position", "latest")
    _done(topics, "create", "early", *both, "--position", "earliest", "--type", "Shared")
    assert {
        where: one.cursor.committed_offset for where, one in _stored(topics, "late").cursors.items()
    } == {
        SourcePartition(orders, 0): 0,
        SourcePartition(orders, 1): 5,
        SourcePartition(bills, 0): 0,
    }
    assert committed(topics.kafka, "late", orders, 1) == 5
    listed = {one["name"]: (one["msgBacklog"], one["type"]) for one in _shown(topics, "list")}
    assert listed == {"early": (5, "Shared"), "late": (0, "Exclusive")}
    again = _run(topics, "create", "late", *both, "--position", "latest")
    assert isinstance(again.exception, SubscriptionExistsError)
    absent = _run(topics, "create", "third", "--topic", f"{orders}-absent", "--position", "latest")
    assert isinstance(absent.exception, TopicError)
    assert set(topics.surveyor.registry.read().subscriptions) == {"early", "late"}


def test_a_foreign_groups_offsets_are_not_replaced(topics: SubscribedTopics, orders: str) -> None:
    """A consumer group that is no subscription keeps what it has committed, unless it is told."""
    topics.fill(orders, 5)
    name = f"group-of-{orders}"
    commit(topics.kafka, name, TopicPartition(orders, 0, 3))
    refused = _run(topics, "create", name, "--topic", orders, "--position", "latest")
    assert isinstance(refused.exception, SubscriptionExistsError)
    assert group_commit(topics.kafka, name, orders).offset == 3
    _done(topics, "create", name, "--topic", orders, "--position", "latest", "--fence")
    assert committed(topics.kafka, name, orders) == 5


def test_reset_by_position_is_previewed_and_begins_an_epoch(
    topics: SubscribedTopics, orders: str
) -> None:
    """A preview changes nothing; then nothing behind the target is acked, and the job is new."""
    topics.fill(orders, 10)
    _create(topics, "sub1", orders)
    topics.acks("sub1", orders, (0, 4), (6, 8))
    words = ("reset", "sub1", "--to-offset", "0:2")
    before = _stored(topics, "sub1").state
    preview = _shown(topics, *words, "--dry-run")
    assert preview == {
        "subscription": "sub1", "kind": "reset", "epoch": 0,
        "messages": 8, "acked": 4, "skipped": 0, "gone": 0,
        "moves": [{
            "topic": orders, "partition": 0, "from": "0:4", "to": "0:2",
            "messages": 8, "acked": 4, "skipped": 0, "gone": 0,
        }],
        "dryRun": True,
    }  # fmt: skip
    asked = _run(topics, *words, answer="n\n")
    assert asked.exit_code == 1
    assert re.search(r"2 │\s+8 │\s+4 │\s+0 │", asked.stdout)
    assert _stored(topics, "sub1").state == before
    assert _shown(topics, *words, "--yes")["epoch"] == 1
    stored = _stored(topics, "sub1")
    (one,) = stored.cursors.values()
    assert (one.cursor.committed_offset, one.cursor.acked_range_count) == (2, 0)
    assert (stored.state.epoch, stored.state.step, stored.state.checkpoint) == (1, -1, "")
    assert stored.state.frontier_ms == BEFORE_ALL_TIME_MS
    assert stored.state.topics == before.topics == topics.surveyor.topics.ids([orders])
    record = topics.surveyor.registry.read().require("sub1")
    assert (record.epoch, record.reset_ms) == (1, stored.state.written_ms)
    assert committed(topics.kafka, "sub1", orders) == 2


def test_partitions_that_are_not_named_stay(
    topics: SubscribedTopics, make_topic: MakeTopic
) -> None:
    """With the holes that they have; what was read of them and not acked is read again."""
    topic = make_topic(2)
    for partition in (0, 1):
        topics.fill(topic, 10, partition=partition)
    _create(topics, "sub1", topic)
    for partition in (0, 1):
        topics.acks("sub1", topic, (0, 4), (6, 8), partition=partition)
    found = _shown(topics, "reset", "sub1", "--to-offset", "1:0", "--yes")
    assert [one["partition"] for one in found["moves"]] == [1]
    cursors = [_cursor(topics, "sub1", topic, partition) for partition in (0, 1)]
    assert [one["markDeletePosition"] for one in cursors] == ["0:3", "1:-1"]
    assert [one["totalNonContiguousDeletedMessagesRange"] for one in cursors] == [1, 0]
    assert [one["readPosition"] for one in cursors] == ["0:4", "1:0"]


@pytest.mark.test_all
def test_reset_by_time(topics: SubscribedTopics, orders: str) -> None:
    """To a length of time ago, to a time, to the first message and behind the last."""
    topics.fill(orders, 10, ages_s=lambda number: 3_600 * (10 - number))
    _create(topics, "sub1", orders)
    topics.acks("sub1", orders, (0, 10))
    for words, expected in (
        (("-t", "150m"), 8),
        (("--to-time", str(topics.now_ms - 5 * 3_600_000)), 5),
        (("--to-time", "2001-02-03T04:05:06Z"), 0),
        (("--to-latest",), 10),
        (("--to-earliest",), 0),
        (("--to-time", str(topics.now_ms + 3_600_000)), 10),
    ):
        found = _shown(topics, "reset", "sub1", *words, "--yes")
        assert found["moves"][0]["to"] == f"0:{expected}"
        assert topics.committed("sub1", orders) == expected
    assert topics.surveyor.registry.read().require("sub1").epoch == 6


@pytest.mark.promise("sub-subscription-reset-messages")
def test_what_was_reset_to_does_not_expire_at_once(topics: SubscribedTopics, orders: str) -> None:
    """apache/pulsar#23030: a time to live is shorter than the way back."""
    topics.fill(orders, 10, ages_s=lambda number: 3_600 * (10 - number))
    topics.policies(orders, TopicPolicies(message_ttl_s=60))
    _create(topics, "sub1", orders)
    assert [one.messages for one in topics.check().acked] == [10]
    _done(topics, "reset", "sub1", "-t", "24h", "--yes")
    assert topics.check().acked == ()
    assert topics.committed("sub1", orders) == 0


def test_targets_that_are_not_there(topics: SubscribedTopics, orders: str) -> None:
    """Refused; what Kafka has deleted is told, and the first message that is there is taken."""
    topics.fill(orders, 10)
    _create(topics, "sub1", orders)
    for position, why in (("0:11", "ends before 10"), ("3:0", "no such partition")):
        refused = _run(topics, "reset", "sub1", "--to-offset", position, "--yes")
        assert isinstance(refused.exception, PositionRangeError)
        assert why in str(refused.exception)
    for words in ((), ("--to-earliest", "--to-latest"), ("--time", "1h", "--to-offset", "0:1")):
        assert _run(topics, "reset", "sub1", *words, "--yes").exit_code == 2
    unknown = _run(topics, "reset", "sub2", "--to-earliest", "--yes")
    assert isinstance(unknown.exception, UnknownSubscriptionError)
    topics.surveyor.topics.delete_before({SourcePartition(orders, 0): 4})
    found = _shown(topics, "reset", "sub1", "--to-offset", "0:1", "--yes")
    assert (found["moves"][0]["to"], found["gone"], found["messages"]) == ("0:4", 3, 6)


def test_skip(topics: SubscribedTopics, make_topic: MakeTopic) -> None:
    """So many that are not acked, of each partition; or all of them; acked ones do not count."""
    topic = make_topic(2)
    for partition in (0, 1):
        topics.fill(topic, 10, partition=partition)
    _create(topics, "sub1", topic)
    topics.acks("sub1", topic, (0, 3), (4, 6))
    found = _shown(topics, "skip", "sub1", "-n", "2", "--yes")
    assert [(one["to"], one["skipped"]) for one in found["moves"]] == [("0:7", 2), ("1:2", 2)]
    assert [topics.committed("sub1", topic, one) for one in (0, 1)] == [7, 2]
    found = _shown(topics, "skip", "sub1", "--all", "--partition", "1", "--yes")
    assert (found["skipped"], found["messages"], found["epoch"]) == (8, 0, 0)
    assert [topics.committed("sub1", topic, one) for one in (0, 1)] == [7, 10]
    _done(topics, "skip", "sub1", "--all", "--yes")
    assert _stats(topics, "sub1", topic)["subscriptions"]["sub1"]["msgBacklog"] == 0
    assert committed(topics.kafka, "sub1", topic) == 10
    assert _run(topics, "skip", "sub1", "--yes").exit_code == 2
    nowhere = _run(topics, "skip", "sub1", "--all", "--partition", "7", "--yes")
    assert isinstance(nowhere.exception, PositionRangeError)


def test_expire(topics: SubscribedTopics, orders: str) -> None:
    topics.fill(orders, 10, ages_s=lambda number: 60 * (10 - number))
    _create(topics, "sub1", orders)
    assert _shown(topics, "expire", "sub1", "-t", "270", "--dry-run")["skipped"] == 6
    assert topics.committed("sub1", orders) == 0
    assert _shown(topics, "expire", "sub1", "-t", "270", "--yes")["skipped"] == 6
    assert topics.committed("sub1", orders) == 6
    assert _shown(topics, "expire", "sub1", "-t", "1h", "--yes")["skipped"] == 0
    assert topics.committed("sub1", orders) == 6


def test_a_place_that_is_not_there_is_refused(topics: SubscribedTopics, orders: str) -> None:
    """To print nothing would say that there is no message."""
    topics.fill(orders, 3)
    _create(topics, "sub1", orders)
    for words in (("--partition", "7"), ("--topic", "no-such-topic")):
        assert isinstance(_run(topics, "peek", "sub1", *words).exception, PositionRangeError)
    refused = _run(topics, "stats", "--topic", "no-such-topic")
    assert refused.exit_code == 2
    assert "no subscription is on topic no-such-topic" in " ".join(refused.output.split())
    assert _run(topics, "peek", "sub1", "-n", "9" * 30).exit_code == 2


def test_peek_shows_the_oldest_and_acks_nothing(
    topics: SubscribedTopics, make_topic: MakeTopic
) -> None:
    """Over all partitions, by event time; without records of transactions that were aborted."""
    topic = make_topic(2)
    client = Producer({**topics.kafka.librdkafka(), "transactional.id": f"writer-of-{topic}"})
    client.init_transactions(PATIENCE_S)
    for commits, values in ((False, ("no",)), (True, ("c", "a", "b"))):
        client.begin_transaction()
        for number, value in enumerate(values):
            event = json.dumps({"at": f"2026-01-01T00:00:0{ord(value[0]) - ord('a')}Z"})
            client.produce(
                topic, event, key=value, partition=number % 2, headers=[("n", b"\xff\x00")]
            )
        client.flush(PATIENCE_S)
        if commits:
            client.commit_transaction(PATIENCE_S)
        else:
            client.abort_transaction(PATIENCE_S)
    _create(topics, "sub1", topic)
    found = _shown(topics, "peek", "sub1", "-n", "2", "--event-time", "json:at")
    assert [one["key"] for one in found] == ["a", "b"]
    assert found[0]["eventTimeMs"] == 1_767_225_600_000
    assert found[0]["headers"] == [["n", {"base64": "/wA="}]]
    table = _done(topics, "peek", "sub1", "-n", "9", "--event-time", "json:at")
    assert table.count("2026-01-01 00:00:0") == 3
    assert topics.committed("sub1", topic) == 0


def test_delete(topics: SubscribedTopics, orders: str) -> None:
    """Cursors, record and group are gone; a new one of that name has nothing of it."""
    topics.fill(orders, 10)
    _create(topics, "sub1", orders)
    topics.acks("sub1", orders, (0, 4))
    assert _run(topics, "delete", "sub1", answer="n\n").exit_code == 1
    assert topics.committed("sub1", orders) == 4
    _done(topics, "delete", "sub1", "--yes")
    assert topics.surveyor.cursors.read("sub1") is None
    assert topics.surveyor.groups.committed(group_of_new(topics.kafka, "sub1")) == {}
    assert _shown(topics, "list") == []
    gone = _run(topics, "delete", "sub1", "--yes")
    assert isinstance(gone.exception, UnknownSubscriptionError)
    _create(topics, "sub1", orders)
    assert topics.committed("sub1", orders) == 0


def test_tables_are_for_people(topics: SubscribedTopics, orders: str) -> None:
    topics.fill(orders, 10)
    _create(topics, "sub1", orders)
    topics.acks("sub1", orders, (0, 3), (4, 10))
    assert re.search(r"sub1 .* - .* 1 │", _done(topics, "list"))
    assert re.search(r"sub1 .* - .* 1 │", _done(topics, "stats"))
    assert "[(0:3..0:9]]" in _done(topics, "stats-internal")
    rates = _done(topics, "stats", "sub1", "--rates-over", "0.1")
    assert "msgRateOut" in rates


def test_maintain_makes_the_checks(topics: SubscribedTopics, orders: str) -> None:
    topics.fill(orders, 10, ages_s=lambda number: 3_600 * (10 - number))
    topics.policies(orders, TopicPolicies(message_ttl_s=5_400))
    _create(topics, "sub1", orders)
    told = _done(topics, "maintain", "--rounds", "1", "--dry-run")
    assert re.search(rf"expired messages: {orders} sub1: partition 0: 9 messages", told)
    assert topics.committed("sub1", orders) == 0
    (line,) = _done(topics, "maintain", "--rounds", "1", "--json").splitlines()
    assert [one["messages"] for one in json.loads(line)["acked"]] == [9]
    assert topics.committed("sub1", orders) == 9

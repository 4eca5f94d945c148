"""Cursors that cannot be read: named, in nobody's way, nothing deleted for them, removable."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur import Subscription
from sequitur.consumer.subscription.admin import SubscriptionAdmin
from sequitur.consumer.subscription.compacted_topic import CompactedTopic
from sequitur.consumer.subscription.cursor_store import cursor_topic
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.consumer.subscription.inspection import (
    internal_document,
    listed,
    stats_document,
    take_sight,
)
from sequitur.consumer.subscription.policies import (
    BacklogPolicy,
    BacklogQuota,
    Retention,
    TopicPolicies,
)
from sequitur.consumer.subscription.position import Edge
from sequitur.consumer.subscription.retention_run import run_retention
from sequitur.errors import CursorVersionError, StateFormatError
from sequitur.kafka.admin import Extents
from sequitur.kafka.control import control_topic
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.settings import KafkaSettings
from tests.support.acls import AUTHORIZER, AclOperation, TopicRights
from tests.support.subscribed_topics import SubscribedTopics
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import MakeBroker, MakeTopic

_UNKNOWN = FindingKind.UNKNOWN


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic(1, retention_ms=-1)


def _damage(topics: SubscribedTopics, name: str, *key: str | int) -> None:
    """Write something else where a record of a subscription stands."""
    table = CompactedTopic(topics.kafka, cursor_topic(topics.kafka), partitions=8)
    client = Producer(topics.kafka.librdkafka())
    text = json.dumps(key, separators=(",", ":"))
    client.produce(table.name, b"torn", text.encode(), table.partition_of(name))
    assert client.flush(PATIENCE_S) == 0


def _keys(topics: SubscribedTopics, name: str) -> list[bytes]:
    table = CompactedTopic(topics.kafka, cursor_topic(topics.kafka), partitions=8)
    return [key for key in table.read() if name.encode() in key]


@pytest.mark.promise("sub-stored-subscription-damaged")
@pytest.mark.parametrize("kind", ["state", "cursor"])
def test_damage_of_one_stops_no_other(
    topics: SubscribedTopics, topic: str, name: str, kind: str
) -> None:
    """The rest is listed and checked; retention keeps what the damaged one may need."""
    topics.fill(topic, 100, size=1_000)
    for one in (name, f"{name}-whole"):
        topics.subscribe(one, topic)
        topics.acks(one, topic, (0, 60))
    _damage(topics, name, *(("state", name) if kind == "state" else ("cursor", name, topic, 0)))
    expires = TopicPolicies(
        message_ttl_s=60,
        retention=Retention(0, 0),
        backlog_quota=BacklogQuota(90_000, None, BacklogPolicy.PRODUCER_EXCEPTION),
    )
    topics.policies(topic, expires)

    sight = take_sight(topics.surveyor)
    damaged, whole = listed(sight)
    assert (damaged["name"], whole["msgBacklog"]) == (name, 40)
    assert damaged["damaged"]
    assert "msgBacklog" not in damaged
    found = stats_document(sight, topic)["subscriptions"]
    assert set(found) == {name, f"{name}-whole"}
    cursors = internal_document(sight, topic)["partitions"][f"{topic}-0"]["cursors"]
    assert cursors[name]["state"] == "Damaged"
    assert cursors[f"{name}-whole"]["markDeletePosition"] == "0:59"

    round_ = topics.check(after_s=3_600)  # all has expired by then
    assert [one.subscription for one in round_.acked] == [f"{name}-whole"]
    assert [one.subscription for one in round_.findings if one.kind is FindingKind.DAMAGED] == [
        name
    ]
    assert topics.committed(f"{name}-whole", topic) == 100
    # What a broken record says is no reason to hold producers back.
    assert not any(one.is_exceeded for one in round_.quotas)
    topics.policies(topic, replace(expires, subscription_expiration_time_minutes=60))
    topics.idle()
    assert topics.check(after_s=7_200, dry_run=True).expired == (f"{name}-whole",)

    run = run_retention(topics.surveyor, [topic])
    assert run.records == 0
    assert [one.holder for one in run.plans] == [name]
    assert topics.start_of(topic) == 0

    SubscriptionAdmin(topics.surveyor).delete(name)
    assert all(f"{name}-whole".encode() in key for key in _keys(topics, name))
    run_retention(topics.surveyor, [topic])
    assert topics.start_of(topic) == 100


@pytest.mark.promise("sub-stored-subscription-damaged")
def test_a_damaged_one_is_created_anew_once_it_is_deleted(
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    """No record of the old one is left, chunks neither."""
    topics.subscribe(name, topic)
    offsets = Random(1).sample(range(1, 1 << 30), 5_000)  # what is random does not compress
    topics.acks(name, topic, *((one, one + 1) for one in offsets))
    assert len(_keys(topics, name)) > 3  # state, owner, cursor, and chunks
    _damage(topics, name, "cursor", name, topic, 0)
    admin = SubscriptionAdmin(topics.surveyor)
    admin.delete(name)
    assert _keys(topics, name) == []
    registry = topics.surveyor.registry.read()
    assert name not in registry.subscriptions
    record = topics.subscribe(name, topic)
    topics.surveyor.registry.change(lambda found: found.deleted(name))
    admin.create(record, at=Edge.EARLIEST)
    assert topics.committed(name, topic) == 0


@pytest.mark.own_broker  # no retention runs on the cluster meanwhile
@pytest.mark.promise("sub-something-subscription-partition")
def test_a_registered_subscription_of_a_newer_version_stops_no_other(
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    """It is named, not created anew, and nothing is deleted that it may need."""
    topics.fill(topic, 10)
    topics.subscribe(name, topic)
    topics.acks(name, topic, (0, 10))
    newer = f"{name}-newer"
    writer = FencedWriter(topics.kafka, f"{name}-writes", name="a newer version")
    registry = control_topic(topics.kafka)
    key = json.dumps(["subscription", newer], separators=(",", ":")).encode()
    try:
        writer.write([TopicWrite(registry, 0, key, b'{"format":99}')])
        unknown = {one.subscription for one in topics.check().findings if one.kind is _UNKNOWN}
        assert unknown == {newer}
        assert [one["name"] for one in listed(take_sight(topics.surveyor))] == [name, newer]
        with Subscription(topics.kafka, f"{name}-other", topic, position="latest"):
            pass
        with pytest.raises(StateFormatError, match=f"{newer}.*unknown format"):
            Subscription(topics.kafka, newer, topic, position="latest")
        run = run_retention(topics.surveyor, [topic])
        assert [(one.records, one.holder) for one in run.plans] == [(0, newer)]
        assert f"{newer!r} may be on it" in run.refusals[0].sentence
    finally:
        writer.write([TopicWrite(registry, 0, key, None)])
        writer.close()
    assert run_retention(topics.surveyor, [topic]).records == 10


@pytest.mark.promise("sub-older-version-meets", "sub-something-subscription-partition")
def test_a_claim_of_the_first_form_is_refused_and_stops_no_other(
    topics: SubscribedTopics, topic: str, name: str
) -> None:
    """Its owner may be at work: nothing of it expires before it is deleted by force."""
    topics.fill(topic, 10)
    other = f"{name}-other"
    for one in (name, other):
        topics.subscribe(one, topic)
        topics.acks(one, topic, (0, 1))
    key, value = topics.claim_in_the_first_form(name)
    expires = TopicPolicies(message_ttl_s=60, subscription_expiration_time_minutes=1_000)
    topics.policies(topic, expires)
    found = topics.check(after_s=3_600)
    assert [one.subscription for one in found.acked] == [other]
    assert [one.subscription for one in found.findings if one.kind is _UNKNOWN] == [name]
    topics.idle()
    assert topics.check(after_s=1_000 * 3_600).expired == (other,)
    with pytest.raises(CursorVersionError, match=f"{name}' has the first form, .*--force"):
        topics.surveyor.cursors.take(name, watch=topics.surveyor.watch)
    assert topics.surveyor.cursors.follow(name).read()[key] == value
    assert topics.committed(name, topic) == 1
    SubscriptionAdmin(topics.surveyor).delete(name, force=True)
    assert topics.surveyor.registry.read().find(name) is None


@pytest.mark.promise("sub-something-subscription-partition")
def test_a_topic_that_may_not_be_described_stops_no_other(make_broker: MakeBroker) -> None:
    """It is named, as one that is gone would be; checks of others go on."""
    broker = make_broker(AUTHORIZER)
    topics = SubscribedTopics(KafkaSettings(bootstrap_servers=broker.bootstrap_servers))
    admin = AdminClient({**topics.kafka.librdkafka(), "log_level": 0})
    for made in admin.create_topics([NewTopic("secret", 1, 1), NewTopic("open", 1, 1)]).values():
        made.result(PATIENCE_S)
    for one in ("secret", "open"):
        topics.fill(one, 10)
        topics.subscribe(f"on-{one}", one)
        topics.acks(f"on-{one}", one, (0, 1))
    topics.policies(None, TopicPolicies(message_ttl_s=60))
    TopicRights(broker.bootstrap_servers, "secret").deny(AclOperation.DESCRIBE, AclOperation.READ)
    found = topics.check(after_s=3_600)
    assert [one.subscription for one in found.acked] == ["on-open"]
    (unknown,) = [one for one in found.findings if one.kind is _UNKNOWN]
    assert (unknown.topic, unknown.subscription) == ("secret", "on-secret")
    assert "may not be described" in unknown.sentence
    assert topics.committed("on-secret", "secret") == 1


@pytest.mark.promise("sub-something-subscription-partition")
def test_a_partition_without_a_leader_stops_no_other(
    topics: SubscribedTopics, make_topic: MakeTopic, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(2, retention_ms=-1)
    led, leaderless = SourcePartition(topic, 0), SourcePartition(topic, 1)
    for partition in (0, 1):
        topics.fill(topic, 10, partition=partition)
    topics.subscribe(name, topic)
    topics.acks_up_to(name, topic, [10, 10])
    found_all = topics.surveyor.topics.extents

    def extents(*asked: Any) -> Extents:
        if topic not in asked[0]:  # registries of other installations
            return found_all(*asked)
        logs, without, since = found_all(*asked)
        assert set(logs) == {led, leaderless}
        assert not without
        since = {key: offset for key, offset in since.items() if key[0] == led}
        return Extents({led: logs[led]}, frozenset([leaderless]), since)

    monkeypatch.setattr(topics.surveyor.topics, "extents", extents)
    found = [one for one in topics.check().findings if one.kind is _UNKNOWN]
    assert [(one.topic, one.sentence) for one in found] == [(topic, "partition 1 has no leader")]
    run = run_retention(topics.surveyor, [topic])
    assert [(one.partition, one.records) for one in run.plans] == [(0, 10)]
    assert topics.start_of(topic, 1) == 0

"""Retention on a real broker: what is deleted is what all have acked and nobody keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from sequitur import Subscription
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.policies import (
    BacklogPolicy,
    BacklogQuota,
    Retention,
    TopicPolicies,
)
from sequitur.consumer.subscription.position import Position, ToPositions
from sequitur.consumer.subscription.retention import Holder
from sequitur.consumer.subscription.retention_run import RetentionRun, run_retention
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import TopicError
from sequitur.kafka.partition import SourcePartition
from tests.support.subscribed_topics import SubscribedTopics, is_group_deleted
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeTopic

_MB = 1 << 20


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of one partition that Kafka itself deletes nothing of."""
    return make_topic(1, retention_ms=-1, max_message_bytes=2 * _MB)


def _two_subscriptions(topics: SubscribedTopics, topic: str, *, second: int = 7) -> None:
    """The article's figure 2: of ten messages 0 to 3 are acked, and 0 to 6."""
    topics.subscribe("Subscription-1", topic)
    topics.subscribe("Subscription-2", topic)
    topics.acks("Subscription-1", topic, (0, 4))
    topics.acks("Subscription-2", topic, (0, second))


def test_deletable_is_what_both_have_acked(topics: SubscribedTopics, topic: str) -> None:
    """0 to 3; a dry run says so and deletes nothing, and the run deletes just that."""
    topics.fill(topic, 10)
    _two_subscriptions(topics, topic)
    dry = run_retention(topics.surveyor, [topic], dry_run=True)
    (plan,) = dry.plans
    assert (plan.before, plan.after, plan.records) == (0, 4, 4)
    assert (plan.held_by, plan.holder) == (Holder.SUBSCRIPTION, "Subscription-1")
    assert plan.size_bytes > 4 * 100
    assert topics.start_of(topic) == 0
    assert not run_retention(topics.surveyor, [topic]).refusals
    assert topics.start_of(topic) == 4
    (again,) = run_retention(topics.surveyor, [topic]).plans
    assert not again.deletes


@pytest.mark.promise("sub-topic-subscriptions-deleted", "sub-something-subscription-partition")
@pytest.mark.parametrize(
    ("written", "knows_ids"), [(3, False), (10, True)], ids=["shorter than before", "longer"]
)
def test_a_topic_that_is_made_anew_is_not_acked(
    topics: SubscribedTopics, topic: str, written: int, *, knows_ids: bool
) -> None:
    """Cursors of the topic that was deleted say nothing of another with its name.

    So none moves, no producer waits for it, and the subscription stays until somebody decides.
    """
    topics.fill(topic, 6)
    topics.subscribe("sub1", topic)
    before = topics.surveyor.topics.ids([topic])
    topics.acks("sub1", topic, (0, 5))
    if knows_ids:
        with topics.surveyor.cursors.take("sub1") as owner:
            owner.write(SubscriptionState(topics=before), [])
    client = AdminClient({**topics.kafka.librdkafka(), "log_level": 0})
    client.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: topics.surveyor.topics.partitions(topic) is None)
    client.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "-1"})])[topic].result(
        PATIENCE_S
    )
    wait_until(lambda: topics.surveyor.topics.partitions(topic) == 1)
    topics.fill(topic, written)
    (plan,) = run_retention(topics.surveyor, [topic]).plans
    assert (plan.deletes, plan.held_by, plan.holder) == (False, Holder.SUBSCRIPTION, "sub1")
    quota = BacklogQuota(None, 120, BacklogPolicy.PRODUCER_EXCEPTION)
    topics.policies(topic, TopicPolicies(quota, 60, 60))
    found = topics.check(after_s=7_200)
    (told,) = [one for one in found.findings if one.kind is FindingKind.UNKNOWN]
    assert (told.topic, told.subscription) == (topic, "sub1")
    assert "recreated" in told.sentence
    assert (found.acked, found.expired) == ((), ())
    assert not any(one.is_exceeded for one in found.quotas)
    assert topics.committed("sub1", topic) == 5
    assert topics.start_of(topic) == 0


@pytest.mark.promise("sub-topic-subscriptions-deleted")
def test_an_open_subscription_notes_which_topic_its_cursors_are_of(
    topics: SubscribedTopics, topic: str
) -> None:
    """So that those of a topic that was deleted are told from those of another of its name."""
    with Subscription(topics.kafka, f"{topic}-own", topic, position="earliest"):
        pass
    stored = topics.surveyor.cursors.read(f"{topic}-own")
    assert stored is not None
    assert stored.state.topics == topics.surveyor.topics.ids([topic])


@pytest.mark.promise("sub-subscription-reset-created")
def test_a_reset_while_it_is_planned_keeps_what_is_replayed(
    topics: SubscribedTopics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deleted goes by the cursors of the end, not by those of the beginning."""
    topics.fill(topic, 10)
    topics.subscribe("goes-back", topic)
    topics.acks("goes-back", topic, (0, 4))
    kinds = topics.surveyor.groups.kinds

    def reset_meanwhile() -> dict[str, str]:
        moves = CursorMoves(topics.surveyor)
        moves.carry_out(moves.plan_reset("goes-back", ToPositions((Position(0, 2, topic),))))
        return kinds()

    monkeypatch.setattr(topics.surveyor.groups, "kinds", reset_meanwhile)
    (plan,) = run_retention(topics.surveyor, [topic]).plans
    assert (plan.after, plan.holder) == (2, "goes-back")
    assert topics.start_of(topic) == 2


@pytest.mark.parametrize(
    "retention", [Retention(60, -1), Retention(-1, 2), Retention(60, 2)], ids=str
)
def test_retention_keeps_4_to_6(topics: SubscribedTopics, topic: str, retention: Retention) -> None:
    """Figure 5: all have acked 0 to 6; 0 to 3 are too old, or beyond the size, and are dropped."""
    topics.fill(topic, 10, ages_s=lambda one: 7_200 if one < 4 else 60, size=350_000)
    _two_subscriptions(topics, topic)
    topics.acks("Subscription-1", topic, (4, 7))
    topics.policies(topic, TopicPolicies(retention=retention))
    (plan,) = run_retention(topics.surveyor, now_ms=topics.now_ms).plans
    assert (plan.after, plan.acked, plan.held_by) == (4, 7, Holder.RETENTION)
    assert topics.start_of(topic) == 4


def test_the_namespaces_retention_holds_where_a_topic_has_none(
    topics: SubscribedTopics, topic: str
) -> None:
    topics.fill(topic, 10)
    _two_subscriptions(topics, topic)
    topics.policies(None, TopicPolicies(retention=Retention(-1, -1)))
    assert run_retention(topics.surveyor, [topic]).records == 0
    topics.policies(topic, TopicPolicies(retention=Retention()))
    assert run_retention(topics.surveyor, [topic]).records == 4
    assert topics.start_of(topic) == 4


def test_a_topic_whose_own_retention_deletes_is_refused(
    topics: SubscribedTopics, make_topic: MakeTopic
) -> None:
    """What is not acked goes there in spite of all: it is said, and done only if told to."""
    topic = make_topic(1, retention_ms=604_800_000, retention_bytes=1 << 40)
    topics.fill(topic, 10)
    _two_subscriptions(topics, topic)
    refused = run_retention(topics.surveyor, [topic])
    (why,) = refused.refusals
    assert why.why is Holder.TOPIC
    assert "retention.ms = 604800000 and retention.bytes" in why.sentence
    assert (refused.records, topics.start_of(topic)) == (0, 0)
    assert run_retention(topics.surveyor, [topic], despite_topic_retention=True).records == 4
    assert topics.start_of(topic) == 4


def test_a_compacted_topic_is_refused_whatever_is_said(
    topics: SubscribedTopics, make_topic: MakeTopic
) -> None:
    """Kafka deletes nothing by offset there."""
    topic = make_topic(1, cleanup_policy="compact")
    topics.subscribe("Subscription-1", topic)
    (why,) = run_retention(topics.surveyor, [topic], despite_topic_retention=True).refusals
    assert "compacted" in why.sentence


@pytest.mark.promise("sub-retention-run-cluster")
def test_a_cut_in_front_of_another_group_is_refused(topics: SubscribedTopics, topic: str) -> None:
    """It has read up to 2 and would lose 2 and 3; a group that is further on is none."""
    topics.fill(topic, 10)
    _two_subscriptions(topics, topic)
    for group, offset in (("mirror", 2), ("reports", 9)):
        other = Consumer({**topics.kafka.librdkafka(), "group.id": f"{group}-{topic}"})
        other.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        other.close()
    run = run_retention(topics.surveyor, [topic])
    assert [(one.after, one.held_by, one.holder) for one in run.plans] == [
        (2, Holder.GROUP, f"mirror-{topic}")
    ]
    (why,) = run.refusals
    assert "would lose" in why.sentence
    assert topics.start_of(topic) == 2
    assert run_retention(topics.surveyor, [topic], despite_other_groups=True).records == 2
    assert topics.start_of(topic) == 4


@pytest.mark.test_all
@pytest.mark.own_broker  # no retention runs on the cluster meanwhile
@pytest.mark.promise("sub-retention-run-cluster")
def test_records_that_a_share_group_may_hold_are_kept(
    topics: SubscribedTopics, make_topic: MakeTopic, topic: str, name: str
) -> None:
    """It commits no offsets, and is in no list of consumer groups; of its topics it is told."""
    other = make_topic(1, retention_ms=-1)
    for one in (topic, other):
        topics.fill(one, 10)
    topics.subscribe(name, topic, other)
    for one in (topic, other):
        topics.acks(name, one, (0, 10))
    group = f"share-{name}"
    admin = AdminClient(topics.kafka.librdkafka())
    from_the_first = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[from_the_first])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    options = {"group.id": group, "share.acknowledgement.mode": "explicit"}
    shares = ShareConsumer({**topics.kafka.librdkafka(), **options})
    shares.subscribe([topic])
    try:
        wait_until(lambda: bool(shares.poll(0.1)))
        run = run_retention(topics.surveyor, [topic])
        assert [(one.after, one.held_by, one.holder) for one in run.plans] == [
            (0, Holder.GROUP, group)
        ]
        (why,) = run.refusals
        assert f"group {group!r} has got to 0" in why.sentence
        assert topics.start_of(topic) == 0
        assert topics.surveyor.groups.share_topics(group) == {topic}
        assert run_retention(topics.surveyor, [other]).records == 10
        assert run_retention(topics.surveyor, [topic], despite_other_groups=True).records == 10
    finally:
        shares.close()
        wait_until(lambda: is_group_deleted(admin, group))


@pytest.mark.promise("sub-retention-run-cluster")
def test_a_share_group_that_tells_nothing_may_need_any_record(
    topics: SubscribedTopics, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker does not know the question, or it has not begun to read."""
    topics.fill(topic, 10)
    topics.subscribe(name, topic)
    topics.acks(name, topic, (0, 10))
    groups = topics.surveyor.groups
    monkeypatch.setattr(groups, "kinds", lambda: {"shares": "share"})
    assert groups.share_offsets("shares") == {}
    run = run_retention(topics.surveyor, [topic])
    assert [(one.records, one.holder) for one in run.plans] == [(0, "shares")]
    assert "is not known to have begun" in run.refusals[0].sentence


@pytest.mark.promise("sub-retention-run-cluster")
def test_a_share_group_that_has_not_begun_holds_the_topics_of_its_members(
    topics: SubscribedTopics,
    make_topic: MakeTopic,
    topic: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that has begun to read another topic; what nobody of it reads is deleted."""
    begun, other = (make_topic(1, retention_ms=-1) for _ in range(2))
    topics.subscribe(name, topic, begun, other)
    for one in (topic, begun, other):
        topics.fill(one, 10)
        topics.acks(name, one, (0, 10))
    groups = topics.surveyor.groups
    monkeypatch.setattr(groups, "kinds", lambda: {"shares": "share"})
    monkeypatch.setattr(groups, "share_topics", lambda _group: {topic, begun})
    offsets: dict[SourcePartition, int] = {}
    monkeypatch.setattr(groups, "share_offsets", lambda _group: offsets)
    wanted = [topic, begun, other]
    for left in ({topic: 0, begun: 0, other: 10}, {topic: 0, begun: 4, other: 10}):
        run = run_retention(topics.surveyor, wanted)
        assert {one.topic: one.after for one in run.plans} == left
        assert {one.holder for one in run.plans if one.after < 10} == {"shares"}
        offsets[SourcePartition(begun, 0)] = 4


@pytest.mark.promise("sub-retention-run-cluster")
@pytest.mark.parametrize(
    ("listed", "told"),
    [
        (False, "Describe on Cluster is missing"),
        (True, "not authorized: it is unknown which records"),
    ],
)
def test_what_groups_need_that_may_not_be_described_is_kept(
    topics: SubscribedTopics,
    topic: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    told: str,
    *,
    listed: bool,
) -> None:
    """Groups that are not listed, or whose offsets are not told, may need any record."""
    topics.fill(topic, 10)
    topics.subscribe(name, topic)
    topics.acks(name, topic, (0, 10))

    def refuse(_group: str) -> dict[SourcePartition, int]:
        raise TopicError("not authorized")

    groups = topics.surveyor.groups
    monkeypatch.setattr(groups, "are_all_listed", lambda: listed)
    monkeypatch.setattr(groups, "kinds", lambda: {"secret": "consumer"})
    monkeypatch.setattr(groups, "committed", refuse)
    run = run_retention(topics.surveyor, [topic])
    assert run.records == 0
    (why,) = run.refusals
    assert told in why.sentence
    assert topics.start_of(topic) == 0


def test_a_subscription_that_has_stored_nothing_holds_everything(
    topics: SubscribedTopics, topic: str
) -> None:
    """A forgotten one; so does one that is between two epochs, whose acks are void."""
    topics.fill(topic, 10)
    _two_subscriptions(topics, topic)
    topics.subscribe("test-subs", topic)
    (plan,) = run_retention(topics.surveyor, [topic]).plans
    assert (plan.deletes, plan.holder) == (False, "test-subs")
    topics.acks("test-subs", topic, (0, 10))
    topics.surveyor.registry.change(
        lambda registry: registry.reset("test-subs", epoch=1, now_ms=topics.now_ms)
    )
    assert run_retention(topics.surveyor, [topic]).records == 0


def test_a_slow_subscription_among_caught_up_partitions(
    topics: SubscribedTopics, make_topic: MakeTopic
) -> None:
    topic = make_topic(20, retention_ms=-1)
    topics.subscribe("prod-subs", topic)
    for number in range(20):
        topics.fill(topic, 5, partition=number)
    topics.acks_up_to("prod-subs", topic, [5] * 19 + [1])
    run: RetentionRun = run_retention(topics.surveyor, [topic])
    assert [one.after for one in run.plans] == [5] * 19 + [1]
    assert [one.holder for one in run.plans if one.held_by is not None] == ["prod-subs"]
    document = run.to_document()
    assert document["records"] == 96
    assert document["partitions"][19]["heldBy"] == "subscription"

"""Rounds of checks on a real broker: quota, time to live, expiration, diagnosis."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from sequitur import Subscription
from sequitur.base.retry import brief_outages
from sequitur.consumer.subscription.backlog import Surveyor, log_sizes
from sequitur.consumer.subscription.checks import Checks
from sequitur.consumer.subscription.claims import HeldLease
from sequitur.consumer.subscription.cursor_moves import CursorMoves
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.group_offsets import GroupOffsets
from sequitur.consumer.subscription.inspection import stats_document, take_sight
from sequitur.consumer.subscription.led_checks import checks_group, watch
from sequitur.consumer.subscription.policies import (
    BacklogPolicy,
    BacklogQuota,
    DetectionThresholds,
    TopicPolicies,
)
from sequitur.consumer.subscription.registry import (
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.registry_store import RegistryStore
from sequitur.consumer.subscription.retention_run import run_retention
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import SubscriptionExistsError, SubscriptionFencedError, TopicError
from sequitur.kafka.control import ToDo, control_topic, key_of
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader
from sequitur.pipelines.ordering.job_checks import SubscriptionChecks
from sequitur.pipelines.ordering.job_subscription import JobRecord, JobSubscription
from sequitur.producer import KafkaSettings
from tests.support.subscribed_topics import MINUTE_MS, SubscribedTopics
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from sequitur.consumer.subscription.checks import CheckRound
    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from sequitur.consumer.subscription.registry import Changes, Registry
    from tests.conftest import MakeBroker, MakeTopic


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic(1, retention_ms=-1)


def _kinds(found: CheckRound) -> list[FindingKind]:
    return [one.kind for one in found.findings]


@pytest.mark.parametrize(
    ("policy", "to_do"),
    [
        (BacklogPolicy.PRODUCER_REQUEST_HOLD, ToDo.HOLD),
        (BacklogPolicy.PRODUCER_EXCEPTION, ToDo.REFUSE),
    ],
)
def test_producers_are_held_until_there_is_room(
    topics: SubscribedTopics, topic: str, policy: BacklogPolicy, to_do: ToDo
) -> None:
    """By size: the state names who holds how much; acks make room, and they go on."""
    topics.fill(topic, 100, size=1_000)
    topics.subscribe("slow", topic)
    topics.policies(topic, TopicPolicies(backlog_quota=BacklogQuota(50_000, None, policy)))
    found = topics.check()
    (check,) = found.quotas
    assert check.is_exceeded
    assert check.proximity == 1.0
    state = topics.told(topic)
    assert state is not None
    assert state.to_do is to_do
    assert (state.subscription, state.limit_bytes) == ("slow", 50_000)
    assert state.backlog_bytes is not None
    assert state.backlog_bytes > 100_000
    assert FindingKind.BACKLOG_QUOTA in _kinds(found)
    topics.acks("slow", topic, (0, 70))
    (check,) = topics.check().quotas
    assert not check.is_exceeded
    assert 0.5 < check.proximity < 1.0
    state = topics.told(topic)
    assert state is not None
    assert state.to_do is ToDo.GO_ON


def test_a_quota_by_age_counts_from_the_oldest_that_is_not_acked(
    topics: SubscribedTopics, topic: str
) -> None:
    """Whoever has acked it frees the producers, though the topic has it still."""
    topics.fill(topic, 10, ages_s=lambda one: 600 if one == 0 else 5)
    topics.subscribe("slow", topic)
    quota = BacklogQuota(None, 60, BacklogPolicy.PRODUCER_EXCEPTION)
    topics.policies(None, TopicPolicies(backlog_quota=quota))
    (check,) = topics.check().quotas
    assert (check.is_too_old, check.subscription) == (True, "slow")
    assert check.age_s == pytest.approx(600, abs=1)
    topics.acks("slow", topic, (0, 1))
    (check,) = topics.check().quotas
    assert not check.is_exceeded
    assert check.age_s == pytest.approx(5, abs=1)


def test_a_topic_that_loses_its_quota_loses_its_state(topics: SubscribedTopics, topic: str) -> None:
    """Else producers would wait until it is stale."""
    topics.fill(topic, 10)
    topics.subscribe("slow", topic)
    topics.policies(topic, TopicPolicies(backlog_quota=BacklogQuota(10)))
    checks = Checks(topics.surveyor)
    checks.run()
    assert topics.told(topic) is not None
    topics.policies(topic, TopicPolicies())
    checks.run()
    checks.close()
    assert topics.told(topic) is None


def test_a_state_that_another_process_has_left_is_deleted(
    topics: SubscribedTopics, topic: str
) -> None:
    """A quota that is removed while nobody makes the checks holds producers no longer than that."""
    topics.fill(topic, 10)
    topics.subscribe("slow", topic)
    topics.policies(topic, TopicPolicies(backlog_quota=BacklogQuota(10)))
    topics.check()
    assert topics.told(topic) is not None
    topics.policies(topic, TopicPolicies())
    topics.check()
    assert topics.told(topic) is None


@pytest.mark.promise("sub-quota-evicts-messages")
def test_eviction_moves_the_slowest_below_nine_tenths(
    topics: SubscribedTopics, make_topic: MakeTopic, topic: str
) -> None:
    """What it skips is previewed, counted and copied; who is further on does not move.

    Copied to where its owner has it, though whoever checks has another topic for others.
    """
    copies = make_topic(1)
    topics.fill(topic, 100, size=1_000)
    topics.subscribe("slow", topic, evicted_topic=copies)
    topics.subscribe("quick", topic, evicted_topic=None)
    topics.acks("slow", topic, (2, 12))
    topics.acks("quick", topic, (0, 90))
    quota = BacklogQuota(50_000, None, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)
    topics.policies(topic, TopicPolicies(backlog_quota=quota))
    (preview,) = topics.check(dry_run=True).acked
    assert topics.committed("slow", topic) == 0
    found = topics.check(copy_to="none-of-this-name")
    assert found.acked == (preview,)
    assert (preview.subscription, preview.why) == ("slow", FindingKind.EVICTED)
    assert preview.messages == preview.stop - 10
    assert topics.committed("slow", topic) == preview.stop
    assert topics.committed("quick", topic) == 90
    (check,) = found.quotas
    assert check.size_bytes < 45_000
    assert not check.is_exceeded
    assert 50 < preview.stop < 70
    where = SourcePartition(copies, 0)
    end = topics.surveyor.topics.high_watermarks([where])[where]
    copied = [record for _, record in Reader(kafka=topics.kafka).rows({where: (0, end)})]
    skipped = [0, 1, *range(12, preview.stop)]
    assert [dict(one.headers)["sequitur-source-offset"] for one in copied] == [
        str(one).encode() for one in skipped
    ]
    assert (copied[0].value or b"").startswith(b"0..")
    state = topics.told(topic)
    assert state is not None
    assert state.policy is None


def test_copies_that_are_evicted_are_not_copied_again(topics: SubscribedTopics, topic: str) -> None:
    """The topic for copies has a quota of its own: copies of copies would fill it for ever."""
    topics.fill(topic, 10, size=1_000)
    topics.subscribe("slow", topic)
    quota = BacklogQuota(5_000, None, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)
    topics.policies(topic, TopicPolicies(backlog_quota=quota))
    (evicted,) = topics.check(copy_to=topic).acked
    assert evicted.messages > 0
    where = SourcePartition(topic, 0)
    assert topics.surveyor.topics.high_watermarks([where]) == {where: 10}


def test_large_messages_are_copied(topics: SubscribedTopics, make_topic: MakeTopic) -> None:
    """Topics decide what is too large, and not the limit of a client, which is a megabyte."""
    large, copies = (make_topic(1, retention_ms=-1, max_message_bytes=4 << 20) for _ in range(2))
    client = Producer({**topics.kafka.librdkafka(), "message.max.bytes": 4 << 20})
    for _ in range(2):
        client.produce(large, bytes(3 << 20), partition=0)
    assert client.flush(PATIENCE_S) == 0
    topics.subscribe("slow", large)
    quota = BacklogQuota(1_000, None, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)
    topics.policies(large, TopicPolicies(backlog_quota=quota))
    (evicted,) = topics.check(copy_to=copies).acked
    where = SourcePartition(copies, 0)
    assert topics.surveyor.topics.high_watermarks([where]) == {where: evicted.messages}


def test_a_group_that_cannot_be_deleted_stops_no_other_check(
    topics: SubscribedTopics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer came in the moment in which the subscription expired."""
    topics.fill(topic, 10)
    topics.subscribe("forgotten", topic, created_ms=topics.now_ms - 3_600_000)
    topics.policies(topic, TopicPolicies(subscription_expiration_time_minutes=1))

    def refuse(_name: str) -> None:
        raise TopicError("the group is not empty")

    monkeypatch.setattr(topics.surveyor.groups, "delete", refuse)
    topics.idle()
    assert topics.check().expired == ("forgotten",)
    assert not topics.surveyor.registry.read().subscriptions


@pytest.mark.promise("sub-copy-evicted-messages")
def test_a_copy_that_is_refused_stops_no_other_check(
    topics: SubscribedTopics, make_topic: MakeTopic, topic: str
) -> None:
    """It is told, nothing is skipped that was not copied, and other producers are held."""
    held, small = make_topic(1, retention_ms=-1), make_topic(1, max_message_bytes=200)
    evict, hold = BacklogPolicy.CONSUMER_BACKLOG_EVICTION, BacklogPolicy.PRODUCER_REQUEST_HOLD
    for one, policy in ((topic, evict), (held, hold)):
        topics.fill(one, 100, size=1_000)
        topics.subscribe(f"of-{policy}", one)
        topics.policies(one, TopicPolicies(backlog_quota=BacklogQuota(50_000, None, policy)))
    found = topics.check(copy_to=small)
    assert found.acked == ()
    (failed,) = [one for one in found.findings if one.kind is FindingKind.FAILED]
    assert failed.subscription == f"of-{evict}"
    assert "MSG_SIZE_TOO_LARGE" in failed.sentence
    assert not topics.committed(f"of-{evict}", topic)
    state = topics.told(held)
    assert state is not None
    assert state.to_do is ToDo.HOLD


def test_eviction_by_age(topics: SubscribedTopics, topic: str) -> None:
    """What is older than nine tenths of the limit is skipped."""
    topics.fill(topic, 10, ages_s=lambda one: 1_000 - one * 100)
    topics.subscribe("slow", topic)
    quota = BacklogQuota(None, 600, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)
    topics.policies(topic, TopicPolicies(backlog_quota=quota))
    found = topics.check()
    assert [(one.first, one.stop, one.messages) for one in found.acked] == [(0, 5, 5)]
    (check,) = found.quotas
    assert check.age_s == pytest.approx(500, abs=1)


def test_a_time_to_live_frees_the_backlog(topics: SubscribedTopics, topic: str) -> None:
    """The article's remedy, holes among what has expired too; the quota is free again with it."""
    topics.fill(topic, 10, ages_s=lambda one: 120 if one < 6 else 10)
    topics.subscribe("slow", topic)
    topics.acks("slow", topic, (3, 5))
    policies = TopicPolicies(message_ttl_s=60, backlog_quota=BacklogQuota(None, 100))
    topics.policies(topic, policies)
    found = topics.check()
    assert [(one.first, one.stop, one.messages) for one in found.acked] == [(0, 6, 4)]
    assert _kinds(found) == [FindingKind.EXPIRED_MESSAGES]
    assert topics.committed("slow", topic) == 6
    (check,) = found.quotas
    assert not check.is_exceeded
    assert check.age_s == pytest.approx(10, abs=1)
    assert topics.check().acked == ()


def test_a_time_to_live_leaves_what_a_reset_asked_for(topics: SubscribedTopics, topic: str) -> None:
    """apache/pulsar#23030: until all from before the reset is acked."""
    topics.fill(topic, 10, ages_s=lambda _one: 120)
    topics.subscribe("slow", topic)
    topics.policies(topic, TopicPolicies(message_ttl_s=60))

    def reset(registry: Registry) -> Changes:
        return registry.reset("slow", epoch=1, now_ms=topics.now_ms)

    topics.surveyor.registry.change(reset)
    assert topics.check().acked == ()
    topics.fill(topic, 1, ages_s=lambda _one: -60)
    assert topics.check(after_s=600).acked == ()


@pytest.mark.promise("sub-owner-subscription-idle")
def test_a_subscription_that_is_held_is_left_to_its_owner(
    topics: SubscribedTopics, topic: str
) -> None:
    """Neither acked for, which would fence it, nor deleted; its last use counts once it ends."""
    topics.fill(topic, 10, ages_s=lambda _one: 120)
    topics.subscribe("used", topic, created_ms=0)
    policies = TopicPolicies(message_ttl_s=60, subscription_expiration_time_minutes=1)
    topics.policies(None, policies)
    with topics.held("used") as owner:
        for _round in range(2):
            found = topics.check()
            assert (found.acked, found.expired) == ((), ())
            assert _kinds(found) == [FindingKind.OWNED]
        owner.write(SubscriptionState(step=3), [])
    assert topics.committed("used", topic) is None
    assert topics.check(after_s=30).expired == ()
    assert topics.committed("used", topic) == 10
    topics.idle(60)
    assert topics.check(after_s=90).expired == ("used",)


@pytest.mark.promise("sub-owner-subscription-idle")
def test_an_owner_that_is_paused_is_taken_over_from_once_its_lease_is_over(
    topics: SubscribedTopics, topic: str
) -> None:
    """By the clock of who makes the checks; before that, it goes on when it wakes up."""
    topics.fill(topic, 10, ages_s=lambda _one: 120)
    topics.subscribe("paused", topic)
    topics.policies(None, TopicPolicies(message_ttl_s=60))
    now_s = 0.0
    checks = Checks(Surveyor(topics.kafka, clock=lambda: now_s))
    asleep = GroupOffsets(len)  # it has no thread that renews
    with topics.surveyor.cursors.take("paused", lease=HeldLease(15), offsets=asleep) as owner:
        assert checks.run().acked == ()
        now_s = 14.9
        assert checks.run().acked == ()
        owner.write(SubscriptionState(step=1), [])
        now_s = 15.0
        assert checks.run().acked == ()
        now_s = 29.9
        assert checks.run().acked == ()
        now_s = 30.0
        assert [one.messages for one in checks.run().acked] == [10]
        with pytest.raises(SubscriptionFencedError, match="was taken over"):
            owner.write(SubscriptionState(step=2), [])
    checks.close()


@pytest.mark.promise("sub-expiration-clocks-differ")
def test_a_subscription_of_an_owner_whose_clock_is_behind_is_not_deleted_when_it_closes(
    topics: SubscribedTopics, topic: str
) -> None:
    """Its word is hours old by the clock of the checks; they note that it is used by their own."""
    ahead_s = 7_200
    topics.subscribe("behind", topic)
    topics.policies(None, TopicPolicies(subscription_expiration_time_minutes=1))
    with topics.held("behind"):
        assert topics.check(after_s=ahead_s).expired == ()
    topics.idle(60)
    assert topics.check(after_s=ahead_s + 59).expired == ()
    assert topics.check(after_s=ahead_s + 60).expired == ("behind",)


@pytest.mark.promise("sub-expiration-clocks-differ")
def test_checks_by_a_clock_that_is_ahead_wait_before_they_delete(
    topics: SubscribedTopics, topic: str
) -> None:
    """They were made by another process while the subscription had its owner."""
    topics.subscribe("left", topic)
    topics.policies(None, TopicPolicies(subscription_expiration_time_minutes=1))
    with topics.held("left"):
        pass
    for passed_s, expired in ((0.0, ()), (20.0, ()), (40.0, ("left",))):
        topics.passed_s += passed_s
        assert topics.check(after_s=7_200).expired == expired


def test_a_forgotten_subscription_expires(topics: SubscribedTopics, topic: str) -> None:
    """The article's `test-subs`: it goes with its cursors and its group, and holds nothing more."""
    topics.fill(topic, 10)
    topics.subscribe("test-subs", topic, created_ms=topics.now_ms - 61 * MINUTE_MS)
    topics.subscribe("prod-subs-1", topic, created_ms=topics.now_ms - 59 * MINUTE_MS)
    topics.acks("test-subs", topic, (0, 1))
    topics.policies(None, TopicPolicies(subscription_expiration_time_minutes=60))
    assert topics.check().expired == ()  # not seen for long
    topics.idle()
    assert topics.check(dry_run=True).expired == ("test-subs",)
    assert topics.committed("test-subs", topic) == 1
    found = topics.check()
    assert found.expired == ("test-subs",)
    assert _kinds(found) == [FindingKind.EXPIRED_SUBSCRIPTION]
    assert list(topics.surveyor.registry.read().subscriptions) == ["prod-subs-1"]
    assert topics.surveyor.cursors.read("test-subs") is None
    assert group_of_new(topics.kafka, "test-subs") not in topics.surveyor.groups.names()
    assert topics.check().expired == ()


def test_an_ack_hole_and_a_slow_subscription_are_found(
    topics: SubscribedTopics, topic: str
) -> None:
    """The diagnosis: backlogSize has all since the hole, msgBacklog one message."""
    topics.fill(topic, 100, size=1_000)
    for name in ("hole", "slow"):
        topics.subscribe(name, topic)
    topics.acks("hole", topic, (0, 3), (4, 100))
    topics.acks("slow", topic, (0, 10))
    thresholds = DetectionThresholds(50, 0, 50, 0.1, 0)
    topics.policies(topic, TopicPolicies(thresholds=thresholds))
    found = topics.check()
    assert {(one.kind, one.subscription) for one in found.findings} == {
        (FindingKind.ACK_HOLE, "hole"),
        (FindingKind.SLOW_SUBSCRIPTION, "slow"),
    }
    backlog = topics.surveyor.survey([topic]).backlog(topic)
    assert backlog.messages("hole") == 1
    assert backlog.size_bytes > 97 * 1_000
    assert found.to_document()["backlogs"][0]["isEstimate"]


@pytest.mark.promise("sub-topic-quota-holds")
def test_what_was_read_counts_as_it_is_stored(topics: SubscribedTopics, topic: str) -> None:
    """Compressed, and no more than what nobody has read."""
    topics.fill(topic, 1_000, size=1_000, codec="zstd")
    topics.subscribe("sub1", topic)
    stored = log_sizes(topics.kafka, [SourcePartition(topic, 0)])
    (size,) = stored.values()
    assert size < 100_000
    for _ in range(2):
        (part,) = topics.surveyor.survey([topic]).backlog(topic).parts
        assert part.size_bytes == size
        topics.acks("sub1", topic)
        topics.reads("sub1", topic, 1_000, size=1_000_000)


@pytest.mark.promise("sub-topic-quota-holds")
def test_what_a_job_holds_for_its_frontier_holds_no_producer(
    topics: SubscribedTopics, topic: str
) -> None:
    """It has read all and acked a tenth; the same of no job holds them, and eviction counts it."""
    topics.fill(topic, 100, size=1_000)
    topics.subscribe("job", topic, max_held_bytes=1 << 30)
    topics.acks("job", topic, (0, 10))
    topics.reads("job", topic, 100, size=100_000)
    hold, evict = BacklogPolicy.PRODUCER_REQUEST_HOLD, BacklogPolicy.CONSUMER_BACKLOG_EVICTION
    topics.policies(topic, TopicPolicies(backlog_quota=BacklogQuota(50_000, None, hold)))
    (check,) = topics.check().quotas
    assert check.is_exceeded
    with topics.surveyor.cursors.take("job") as owner:
        assert owner.stored is not None
        owner.write(replace(owner.stored.state, checkpoint="folder", frontier_ms=7), [])
    found = topics.check()
    (check,) = found.quotas
    assert (check.size_bytes, check.is_exceeded) == (0, False)
    state = topics.told(topic)
    assert state is not None
    assert (state.policy, state.backlog_bytes) == (None, 0)
    document = found.to_document()["backlogs"][0]
    assert document["heldSize"] == document["backlogSize"] > 90_000
    topics.policies(topic, TopicPolicies(backlog_quota=BacklogQuota(50_000, None, evict)))
    (check,) = topics.check(dry_run=True).quotas
    assert check.evicts


@pytest.mark.promise("sub-timestamps-topic-order")
def test_each_cursor_has_the_age_of_its_first_message(
    topics: SubscribedTopics, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many cursors there are, on however many partitions; a round asks no more for them."""
    topic = make_topic(3, retention_ms=-1)
    for partition in range(3):
        topics.fill(topic, 40, partition=partition, ages_s=lambda one: 10_000 - 100 * one)
    for number in range(1, 13):
        topics.subscribe(f"sub{number}", topic)
        topics.acks_up_to(f"sub{number}", topic, [number, 2 * number, 3 * number])
    found = topics.surveyor.with_oldest(topics.surveyor.survey([topic])).oldest_ms
    expected = {(part, (part + 1) * number) for number in range(1, 13) for part in range(3)}
    assert {(where.partition, offset): ms for (where, offset), ms in found.items()} == {
        (part, offset): topics.now_ms - 1_000 * (10_000 - 100 * offset) for part, offset in expected
    }
    other = SubscribedTopics(topics.kafka)
    admin, asked = other.surveyor.admin, list[str]()
    list_topics = admin.list_topics

    def counted(**options: Any) -> Any:
        asked.append("all topics")
        return list_topics(**options)

    monkeypatch.setattr(admin, "list_topics", counted)
    slow = [one for one in other.check().findings if one.kind is FindingKind.SLOW_SUBSCRIPTION]
    assert sorted(one.subscription or "" for one in slow) == sorted(
        f"sub{number}" for number in range(1, 13)
    )
    # One of each partition shows it of all cursors before it.
    assert len(other.surveyor._ages) == 3
    assert 0 < len(asked) < 12


@pytest.mark.promise("sub-copy-evicted-messages")
def test_an_open_transaction_of_a_producer_stops_no_check(
    topics: SubscribedTopics, topic: str
) -> None:
    """What it has written has no age yet; who has not acked what is before it is held to that."""
    topics.fill(topic, 10, ages_s=lambda _one: 600)
    for name in ("slow", "quick"):
        topics.subscribe(name, topic)
    topics.acks("quick", topic, (0, 10))
    topics.policies(topic, TopicPolicies(backlog_quota=BacklogQuota(None, 60)))
    client = Producer({**topics.kafka.librdkafka(), "transactional.id": topic})
    client.init_transactions(PATIENCE_S)
    client.begin_transaction()
    client.produce(topic, b"open")
    assert client.flush(PATIENCE_S) == 0
    (check,) = topics.check().quotas
    assert (check.is_too_old, check.subscription) == (True, "slow")
    topics.acks("slow", topic, (0, 10))
    (check,) = topics.check().quotas
    assert not check.is_exceeded
    client.abort_transaction(PATIENCE_S)


@pytest.mark.promise("sub-copy-evicted-messages")
def test_what_a_transaction_may_abort_is_not_evicted_where_copies_are_made(
    topics: SubscribedTopics, make_topic: MakeTopic, topic: str
) -> None:
    """The check does not wait for its end, and what is before it is copied once."""
    copies = make_topic(1)
    topics.fill(topic, 10, size=1_000)
    client = Producer({**topics.kafka.librdkafka(), "transactional.id": topic})
    client.init_transactions(PATIENCE_S)
    client.begin_transaction()
    for _ in range(90):
        client.produce(topic, bytes(1_000), partition=0)
    assert client.flush(PATIENCE_S) == 0
    topics.subscribe("slow", topic, evicted_topic=copies)
    quota = BacklogQuota(50_000, None, BacklogPolicy.CONSUMER_BACKLOG_EVICTION)
    topics.policies(topic, TopicPolicies(backlog_quota=quota))
    (evicted,) = topics.check().acked
    assert (evicted.first, evicted.stop, evicted.messages) == (0, 10, 10)
    assert topics.check().acked == ()
    where = SourcePartition(copies, 0)
    assert topics.surveyor.topics.high_watermarks([where]) == {where: 10}
    client.commit_transaction(PATIENCE_S)
    (evicted,) = topics.check().acked
    assert (evicted.first, topics.committed("slow", topic)) == (10, evicted.stop)
    assert topics.surveyor.topics.high_watermarks([where]) == {where: evicted.stop}


def _shared(
    topics: SubscribedTopics, name: str, topic: str, created_ms: int | None = None
) -> SubscriptionRecord:
    made_ms = topics.now_ms if created_ms is None else created_ms
    group = group_of_new(topics.kafka, name)
    return SubscriptionRecord(name, (topic,), SubscriptionType.SHARED, made_ms, group=group)


def test_two_admins_at_once_lose_nothing(topics: SubscribedTopics, topic: str) -> None:
    """Each change sees what the other has written; of two that create one the second fails."""
    wrong: list[BaseException] = []

    def admin(number: int) -> None:
        store = RegistryStore(topics.kafka)
        for turn in range(4):
            record = _shared(topics, f"sub-{number}-{turn}", topic)
            store.change(lambda registry, record=record: registry.created(record))  # type: ignore[misc]
            try:
                same = _shared(topics, f"both-{turn}", topic, created_ms=number)
                store.change(lambda registry, same=same: registry.created(same))  # type: ignore[misc]
            except SubscriptionExistsError as error:
                wrong.append(error)

    admins = [threading.Thread(target=admin, args=(number,)) for number in range(2)]
    for one in admins:
        one.start()
    for one in admins:
        one.join()
    expected = {f"sub-{number}-{turn}" for number in range(2) for turn in range(4)}
    found = topics.surveyor.registry.read().subscriptions
    assert set(found) == expected | {f"both-{turn}" for turn in range(4)}
    assert len(wrong) == 4


def test_what_was_read_before_anothers_change_is_not_written(
    topics: SubscribedTopics, topic: str
) -> None:
    seen: list[set[str]] = []

    def change(registry: Registry) -> Changes:
        seen.append(set(registry.subscriptions))
        if len(seen) == 1:
            topics.subscribe("meanwhile", topic)
        return registry.created(_shared(topics, "own", topic))

    topics.surveyor.registry.change(change)
    assert seen == [set(), {"meanwhile"}]
    assert set(topics.surveyor.registry.read().subscriptions) == {"own", "meanwhile"}


def test_what_is_told_each_second_does_not_pile_up(make_broker: MakeBroker) -> None:
    """Kafka compacts it while it is written: each round and each new producer reads the topic."""
    broker = make_broker({"log.cleaner.backoff.ms": "100"})
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    RegistryStore(kafka).ensure()
    topic = control_topic(kafka)
    client = Producer({**kafka.librdkafka(), "linger.ms": 5})
    for number in range(40_000):
        client.produce(topic, b"." * 500, key_of("orders"), partition=0)
        if number % 1_000 == 0:
            assert client.flush(PATIENCE_S) == 0
    assert client.flush(PATIENCE_S) == 0
    where = SourcePartition(topic, 0)
    wait_until(lambda: log_sizes(kafka, [where])[where] < 6 << 20)


def test_one_process_at_a_time_makes_the_checks(topics: SubscribedTopics, topic: str) -> None:
    """The other one takes over when it ends."""
    topics.subscribe("sub1", topic)
    rounds: list[int] = []
    stops = [threading.Event(), threading.Event()]

    def run(number: int) -> None:
        watch(
            topics.kafka,
            tell=lambda _found: rounds.append(number),
            stop=stops[number].is_set,
            interval_s=0.05,
        )

    group = checks_group(topics.kafka)
    watchers = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    watchers[0].start()
    wait_until(lambda: len(rounds) > 1)
    watchers[1].start()
    wait_until(lambda: len(topics.surveyor.groups.connected([group])) == 1)
    leader = rounds[-1]
    stops[leader].set()
    watchers[leader].join()
    wait_until(lambda: (1 - leader) in rounds)
    stops[1 - leader].set()
    watchers[1 - leader].join()
    # Nobody came between: who led once did so until it ended.
    assert rounds == sorted(rounds, key=lambda one: one != leader)


def test_a_leader_that_was_cut_off_may_not_tell_producers(
    topics: SubscribedTopics, topic: str
) -> None:
    """It has lost the transactional id to the one that leads now."""
    topics.fill(topic, 10)
    topics.subscribe("slow", topic)
    topics.policies(topic, TopicPolicies(backlog_quota=BacklogQuota(10)))
    old, new = Checks(topics.surveyor), Checks(topics.surveyor)
    old.run()
    new.run()
    with pytest.raises(SubscriptionFencedError):
        old.run()
    new.run()
    old.close()
    new.close()


@pytest.mark.promise("sub-topic-retention-somebody")
def test_what_a_topics_own_retention_deletes_is_told(
    topics: SubscribedTopics, make_topic: MakeTopic, name: str
) -> None:
    """First that it is near, then how much is lost; the consumer that comes counts it, too."""
    topic = make_topic(1, retention_ms=100_000_000)
    topics.fill(topic, 10, ages_s=lambda _one: 60_000)
    topics.subscribe(name, topic)
    topics.acks(name, topic, (0, 1), (3, 5))
    kinds = {one.kind for one in topics.check().findings}
    assert FindingKind.NEAR_DELETION in kinds
    assert FindingKind.LOST not in kinds
    topics.surveyor.topics.delete_before({SourcePartition(topic, 0): 7})
    found = {one.kind: one for one in topics.check().findings}
    assert found[FindingKind.LOST].figures["lostAtMost"] == 4
    (stats,) = stats_document(take_sight(topics.surveyor), topic)["subscriptions"].values()
    assert (stats["lostAtMost"], stats["msgBacklog"]) == (4, 3)
    with Subscription(topics.kafka, name, topic, position="earliest") as subscription:
        message = subscription.receive(PATIENCE_S)
        assert message is not None
        assert message.offset == 7
        counts = subscription.stats().cursors[topic, 0]
        assert (counts.lost, counts.absent, counts.consumed) == (4, 0, 3)
    assert FindingKind.LOST not in {one.kind for one in topics.check().findings}


@pytest.mark.promise("sub-deleted-then-passed-over")
def test_what_was_deleted_stays_lost_behind_a_skip_and_a_time_to_live(
    topics: SubscribedTopics, topic: str
) -> None:
    """It is counted once, in the cursor, and not as consumed."""
    topics.fill(topic, 10, ages_s=lambda _one: 600)
    for name in ("skipped", "expired"):
        topics.subscribe(name, topic)
        topics.acks(name, topic, (0, 1), (3, 5))
    topics.surveyor.topics.delete_before({SourcePartition(topic, 0): 7})
    moves = CursorMoves(topics.surveyor)
    moves.carry_out(moves.plan_skip("skipped", 1))
    topics.policies(topic, TopicPolicies(message_ttl_s=60))
    topics.check()
    found = stats_document(take_sight(topics.surveyor), topic)["subscriptions"]
    assert {(one["lostAtMost"], one["msgBacklog"]) for one in found.values()} == {(4, 0)}
    assert topics.committed("skipped", topic) == topics.committed("expired", topic) == 10


@pytest.mark.promise("sub-job-pattern-comes")
def test_topics_that_a_pattern_comes_to_match_are_registered(
    topics: SubscribedTopics, make_topic: MakeTopic, name: str
) -> None:
    """Before the first batch of them is read, while the job runs."""
    first, second = make_topic(1), make_topic(1)
    topics.fill(second, 10)
    topics.subscribe("other", second)
    topics.acks("other", second, (0, 10))

    def take() -> CursorOwner:
        raise AssertionError("nothing is written here")

    outages = brief_outages()
    record = JobRecord(
        name,
        topics.surveyor.registry,
        new_group=group_of_new(topics.kafka, name),
        evicted_topic="copies",
        max_held_bytes=1 << 30,
    )
    job = JobSubscription(name, None, take, topics.surveyor.topics, outages, record=record)

    def registered() -> set[str]:
        return set(topics.surveyor.registry.read().require(name).topics)

    with SubscriptionChecks(
        topics.kafka,
        job,
        [first],
        outages,
        replication_factor=1,
    ):
        assert registered() == {first}
        assert not job.acked({}, {SourcePartition(first, 0): 0, SourcePartition(second, 0): 10})
        assert registered() == {first, second}
        found = topics.surveyor.registry.read().require(name)
        assert (found.evicted_topic, found.max_held_bytes) == ("copies", 1 << 30)
    (plan,) = run_retention(topics.surveyor, [second], dry_run=True).plans
    assert (plan.records, plan.holder) == (0, name)

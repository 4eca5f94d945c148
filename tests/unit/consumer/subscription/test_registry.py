"""The registry of subscriptions: its records, and the rules of a change."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NoReturn, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.subscription.policies import Retention, TopicPolicies
from sequitur.consumer.subscription.registry import (
    Registry,
    SubscriptionRecord,
    SubscriptionType,
    check_name,
    read_key,
)
from sequitur.consumer.subscription.registry_store import registries_of_others
from sequitur.errors import (
    StateFormatError,
    SubscriptionExistsError,
    SubscriptionNameError,
    TopicError,
    UnknownSubscriptionError,
)
from sequitur.kafka.settings import KafkaSettings
from tests.support.golden import golden_records
from tests.support.values import replace
from tests.unit.consumer.subscription.test_policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.consumer.subscription.registry import Changes
    from sequitur.kafka.admin import KafkaTopics

_NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,30}", fullmatch=True).filter(lambda one: one.strip("."))
_COUNTS = st.integers(0, 1 << 50)
_RECORDS = st.builds(
    SubscriptionRecord,
    name=_NAMES,
    topics=st.lists(_NAMES, min_size=1, max_size=4, unique=True).map(tuple),
    type=st.sampled_from(SubscriptionType),
    created_ms=_COUNTS,
    epoch=_COUNTS,
    last_connected_ms=_COUNTS,
    expiration_time_minutes=st.none() | _COUNTS,
    reset_ms=st.none() | _COUNTS,
    partition=st.none() | _COUNTS,
    group=_NAMES,
)


def _record(name: str = "billing", *topics: str, **more: int | str | None) -> SubscriptionRecord:
    options = {"created_ms": 1_000, "last_connected_ms": 1_000, "group": f"sequitur-{name}", **more}
    return SubscriptionRecord(name, topics or ("orders",), SubscriptionType.EXCLUSIVE, **options)  # type: ignore[arg-type]


def _registry(*records: SubscriptionRecord, **policies: TopicPolicies) -> Registry:
    """A registry of these records; the policies of the namespace are those of `default`."""
    held: dict[str | None, TopicPolicies] = {
        None if topic == "default" else topic: one for topic, one in policies.items()
    }
    return Registry({one.name: one for one in records}, held)


def _after(registry: Registry, changes: Changes) -> Registry:
    records = {one.key: one.encode() for one in registry.subscriptions.values()}
    for topic, policies in registry.policies.items():
        written = registry.with_policies(topic, policies)
        records |= {key: value for key, value in written.items() if value is not None}
    for key, value in changes.items():
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value
    return Registry.of(records)


@given(_RECORDS)
def test_a_record_is_read_as_it_was_written(record: SubscriptionRecord) -> None:
    """All of it comes back, and the key names it."""
    assert SubscriptionRecord.decode(record.encode()) == record
    assert read_key(record.key) == ("subscription", record.name)


def test_records_are_those_of_the_contract() -> None:
    """Other programs read them, too."""
    record = _record("test-subs", "a", "b", expiration_time_minutes=60)
    assert record.key == b'["subscription","test-subs"]'
    assert json.loads(record.encode()) == {
        "format": 2, "name": "test-subs", "topics": ["a", "b"], "type": "Exclusive",
        "created_ms": 1_000, "epoch": 0, "last_connected_ms": 1_000,
        "expiration_time_minutes": 60, "reset_ms": None, "partition": None,
        "group": "sequitur-test-subs",
        "evicted_topic": None, "max_held_bytes": None,
    }  # fmt: skip


@pytest.mark.promise("sub-older-version-meets")
def test_a_record_of_an_older_version_is_refused_by_name_and_kept() -> None:
    """Its policies hold, and nothing that this version changes writes its record."""
    registry = Registry.of(golden_records("sequitur-subscriptions"))
    assert not registry.subscriptions
    refused = "'billing': .* unknown format, 1, this version reads 2: let the version that wrote it"
    with pytest.raises(StateFormatError, match=refused):
        registry.connected("billing", now_ms=1, partition=5)
    assert registry.policies_of("orders").message_ttl_s == 60


@given(st.lists(_RECORDS, max_size=5), st.dictionaries(st.none() | _NAMES, POLICIES, max_size=3))
def test_the_whole_registry_is_read_back(
    records: list[SubscriptionRecord], policies: dict[str | None, TopicPolicies]
) -> None:
    """Backlog states, which stand in the same topic, are passed over."""
    registry = Registry({one.name: one for one in records}, policies)
    found = _after(registry, {b'["backlog","orders"]': b"{}"})
    assert found.subscriptions == registry.subscriptions
    set_there = {topic: one for topic, one in policies.items() if not one.is_empty}
    assert found.policies == set_there


@pytest.mark.parametrize("name", ["billing", "a", "A.b_c-9", "x" * 249, "..."])
def test_names_of_group_members_are_taken(name: str) -> None:
    """The instance id follows the rule of topic names."""
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "größe", "x" * 250, "a\n"])
def test_other_names_are_refused(name: str) -> None:
    """Kafka would refuse them when the first consumer connects."""
    with pytest.raises(SubscriptionNameError, match="expected letters"):
        _record(name)


def test_it_is_on_a_topic() -> None:
    """One on none would have no cursor, and hold nothing back."""
    with pytest.raises(ValueError, match="on no topic"):
        SubscriptionRecord("billing", (), SubscriptionType.SHARED, created_ms=0, group="")


def test_cumulative_acks_are_for_two_types() -> None:
    assert {one for one in SubscriptionType if one.takes_cumulative_acks} == {
        SubscriptionType.EXCLUSIVE,
        SubscriptionType.FAILOVER,
    }


def test_to_create_one_twice_is_refused() -> None:
    """The second would move the first one's cursor."""
    registry = _after(Registry(), Registry().created(_record()))
    assert list(registry.subscriptions) == ["billing"]
    with pytest.raises(SubscriptionExistsError, match="billing"):
        registry.created(_record())


def test_one_that_is_deleted_is_gone() -> None:
    registry = _registry(_record())
    assert _after(registry, registry.deleted("billing")).subscriptions == {}
    with pytest.raises(UnknownSubscriptionError, match="other"):
        registry.deleted("other")


def test_a_reset_is_noted_once() -> None:
    """Its epoch is that of the cursors; who notes an older one is late, and changes nothing."""
    registry = _registry(_record())
    after = _after(registry, registry.reset("billing", epoch=2, now_ms=9_000))
    assert after.require("billing").epoch == 2
    assert after.require("billing").reset_ms == 9_000
    assert after.reset("billing", epoch=2, now_ms=9_500) == {}
    assert after.reset("billing", epoch=1, now_ms=9_500) == {}
    with pytest.raises(UnknownSubscriptionError, match="other"):
        after.reset("other", epoch=1, now_ms=9_500)


def test_the_last_connection_does_not_go_back() -> None:
    """Clocks of two machines may differ."""
    registry = _registry(_record(last_connected_ms=5_000))
    later = _after(registry, registry.connected("billing", now_ms=6_000))
    assert later.require("billing").last_connected_ms == 6_000
    earlier = _after(registry, registry.connected("billing", now_ms=4_000))
    assert earlier.require("billing").last_connected_ms == 5_000


def test_who_opens_one_sets_what_may_change_and_nothing_else() -> None:
    """Where evicted messages go, and how much a job may hold; and where its cursors are."""
    known = _record(epoch=3, partition=5, evicted_topic="before", max_held_bytes=1)
    wanted = _record(created_ms=7_000, group="other", evicted_topic="evicted", max_held_bytes=9)
    registry = _registry(known)
    expected = replace(known, evicted_topic="evicted", max_held_bytes=9, last_connected_ms=8_000)
    for partition, noted in ((None, 5), (6, 6)):
        changes = registry.opened(replace(wanted, partition=partition), now_ms=8_000)
        assert _after(registry, changes).require("billing") == replace(expected, partition=noted)
    with pytest.raises(UnknownSubscriptionError, match="other"):
        registry.opened(_record("other"), now_ms=8_000)


def test_where_cursors_are_is_known_once_it_is_noted() -> None:
    registry = _registry(_record("a"), _record("b", partition=0))
    assert [registry.partition_of(name) for name in ("a", "b", "c")] == [None, 0, None]


def test_policies_of_a_topic_of_the_namespace_and_of_none() -> None:
    registry = _registry(
        orders=TopicPolicies(message_ttl_s=60),
        default=TopicPolicies(message_ttl_s=5, subscription_expiration_time_minutes=30),
    )
    assert registry.policies_of("orders").message_ttl_s == 60
    assert registry.policies_of("orders").subscription_expiration_time_minutes == 30
    assert registry.policies_of("other").message_ttl_s == 5
    assert Registry().policies_of("orders").message_ttl_s == 0


def test_policies_of_which_none_is_left_have_no_record() -> None:
    registry = _registry(orders=TopicPolicies(message_ttl_s=60))
    assert registry.with_policies("orders", TopicPolicies()) == {b'["policies","orders"]': None}
    assert list(registry.with_policies(None, TopicPolicies(message_ttl_s=1))) == [
        b'["policies",null]'
    ]


def test_the_longest_expiration_of_its_topics_counts() -> None:
    """Its own comes first; a topic on which it never expires keeps it."""
    minutes = [TopicPolicies(subscription_expiration_time_minutes=one) for one in (10, 40, 0)]
    registry = _registry(a=minutes[0], b=minutes[1], c=minutes[2])
    for record, expected in (
        (_record("one", "a", "b"), 40),
        (_record("one", "a", "b", "c"), 0),
        (_record("one", "a", "b", expiration_time_minutes=7), 7),
        (_record("one", "a", expiration_time_minutes=0), 0),
    ):
        assert registry.expiration_minutes(record) == expected


def test_subscriptions_and_topics_are_found() -> None:
    registry = _registry(_record("b", "x", "y"), _record("a", "x"))
    assert [one.name for one in registry.on("x")] == ["a", "b"]
    assert [one.name for one in registry.on("y")] == ["b"]
    assert registry.topics() == ["x", "y"]


@pytest.mark.promise("sub-older-version-meets", "sub-something-subscription-partition")
@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (b'["subscription","a"]', b"x", "^a subscription is not JSON: b'x'$"),
        (b'["subscription","a"]', b"[]", "^the record of a subscription has an unknown format"),
        (
            b'["subscription","a"]',
            b'{"format":3}',
            "has an unknown format, 3, this version reads 2: let the version that wrote it delete",
        ),
        (b'["subscription","a"]', b'{"format":2,"name":"a"}', "^the record .* read: .*`topics`$"),
        (b'["subscription","a"]', b'{"format":2,"x":1,"y":1}', "^the record .* field `x`$"),
        (b'["policies","a"]', b'{"format":9}', "^policies of format 9, this version reads 1$"),
        (b'["policies","a"]', b"\xff", "^policies is not JSON"),
        (b'["policies","a"]', b'{"format":1,"messageTtlInSeconds":1e999}', "^policies"),
        pytest.param(b'["policies","a"]', b"[" * 100_000, "^policies is not JSON", id="deep"),
    ],
)
def test_records_that_cannot_be_read_are_named_and_stop_no_other(
    key: bytes, value: bytes, why: str
) -> None:
    """What they say is unknown: no such subscription is created anew, and nothing is deleted."""
    other = _record()
    registry = Registry.of({key: value, other.key: other.encode()})
    assert list(registry.subscriptions) == [other.name]
    if b"policies" in key:
        assert registry.unread_policies == {"a"}
        in_force = registry.policies_of("a")
        assert (in_force.message_ttl_s, in_force.subscription_expiration_time_minutes) == (0, 0)
        assert in_force.retention == Retention(-1, -1)
        assert registry.policies_of("b").retention == Retention()
        return
    assert re.search(why, registry.unread["a"])
    for refused in (
        lambda: registry.require("a"),
        lambda: registry.created(replace(other, name="a")),
        lambda: registry.deleted("a"),
    ):
        with pytest.raises(StateFormatError, match="subscription 'a': "):
            refused()


def test_policies_of_the_namespace_that_cannot_be_read_keep_all_that_no_topic_sets() -> None:
    key = b'["policies",null]'
    own = Registry().with_policies("a", TopicPolicies(message_ttl_s=60))
    registry = Registry.of({key: b"{}", **{name: one for name, one in own.items() if one}})
    assert registry.policies_of("a").message_ttl_s == 60
    assert registry.policies_of("a").retention == Retention(-1, -1)


@pytest.mark.parametrize(("topic", "whose"), [(None, "the namespace"), ("a", "a")])
def test_policies_that_cannot_be_read_are_not_written_over(topic: str | None, whose: str) -> None:
    """Those of a newer version say what only that version understands."""
    registry = Registry.of({json.dumps(["policies", topic]).encode(): b'{"format":9}'})
    with pytest.raises(StateFormatError, match=f"the policies of {whose} cannot be read"):
        registry.with_policies(topic, TopicPolicies(message_ttl_s=60))
    assert registry.with_policies("b", TopicPolicies(message_ttl_s=60))


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (b"orders", "^a key of the registry is not JSON"),
        (b"[1]", r"^b'\[1\]' is not a key of the reg"),
    ],
)
def test_a_key_that_is_none_is_refused(key: bytes, why: str) -> None:
    with pytest.raises(StateFormatError, match=why):
        read_key(key)


@pytest.mark.parametrize(
    "key",
    [
        *(b"subscription", b"[1,2]", b'["subscription"]', b'["backlog"]'),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_keys_that_nobody_here_writes_are_passed_over(key: bytes) -> None:
    """One bad record in the topic keeps nobody from what stands beside it."""
    record = _record()
    registry = Registry.of({key: b"{}", record.key: record.encode()})
    assert list(registry.subscriptions) == [record.name]


def test_a_record_under_anothers_key_is_refused() -> None:
    registry = Registry.of({b'["subscription","other"]': _record().encode()})
    assert "has the key of" in registry.unread["other"]
    assert not registry.subscriptions


class _SecretTopics:
    """Stands for `KafkaTopics`: there are registries, and their offsets are not told."""

    asked: tuple[str, ...] = ()

    def compacted(self, matches: Callable[[str], object]) -> list[str]:
        names = ("team_a-subscriptions", "sequitur-subscriptions", "my-own-subscriptions", "orders")
        return [name for name in names if matches(name)]

    def extents(self, topics: Iterable[str]) -> NoReturn:
        self.asked = tuple(topics)
        raise TopicError("the brokers do not list the topics' offsets: not authorized")


@pytest.mark.promise("sub-two-installations-share")
def test_a_registry_of_others_that_may_not_be_read_is_an_error() -> None:
    """It says what helps; one's own is not asked, and neither is what has no prefix's form."""
    topics = _SecretTopics()
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(TopicError, match=r"not authorized: .* Allow this user to read topics"):
        registries_of_others(kafka, cast("KafkaTopics", topics))
    assert topics.asked == ("team_a-subscriptions",)

"""`sequitur topic` and `sequitur retention` on a real broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from sequitur.cli.main import app
from sequitur.errors import PolicyError, TopicError

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.subscribed_topics import SubscribedTopics


def _run(topics: SubscribedTopics, *words: str) -> Result:
    return CliRunner().invoke(app, words, env=topics.environ)


def _shown(topics: SubscribedTopics, *words: str) -> Any:
    shown = _run(topics, *words, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def _done(topics: SubscribedTopics, *words: str) -> None:
    done = _run(topics, *words)
    assert done.exit_code == 0, done.output


def test_policies_are_set_shown_and_removed(topics: SubscribedTopics) -> None:
    """In the shape of pulsar-admin, under its names; each leaves the others alone."""
    for words in (
        ("set-backlog-quota", "--limit", "10M", "-p", "consumer_backlog_eviction"),
        ("set-message-ttl", "--messageTTL", "60"),
        ("set-subscription-expiration-time", "--time", "60"),
        ("set-retention", "--size", "1G", "--time", "1d"),
        ("set-thresholds", "--slow-backlog", "7", "--slow-age", "1h"),
    ):
        _done(topics, "topic", words[0], "orders", *words[1:])
    for what, expected in (
        (
            "backlog-quota",
            {"limit": 10_485_760, "limitTime": -1, "policy": "consumer_backlog_eviction"},
        ),
        ("message-ttl", 60),
        ("subscription-expiration-time", 60),
        ("retention", {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 1024}),
    ):
        assert _shown(topics, "topic", f"get-{what}", "orders") == expected
        assert _shown(topics, "topic", f"get-{what}") is None
        _done(topics, "topic", f"remove-{what}", "orders")
        assert _shown(topics, "topic", f"get-{what}", "orders") is None
    found = _shown(topics, "topic", "get", "orders")
    assert list(found["set"]) == ["thresholds"]
    assert found["set"]["thresholds"]["slowAgeInSeconds"] == 3_600
    _done(topics, "topic", "remove-thresholds", "orders")
    assert topics.surveyor.registry.read().policies == {}


@pytest.mark.parametrize("name", ["", "a/b", "[/]", "[red]x[/]"])
def test_what_no_topic_can_be_called_is_refused(topics: SubscribedTopics, name: str) -> None:
    """A variable of a shell that is not set, or a typing error: the policy would hold for none."""
    for words in (("set-message-ttl", name, "--messageTTL", "60"), ("get", name)):
        refused = _run(topics, "topic", *words)
        assert refused.exit_code == 2
        assert "expected a topic name" in " ".join(refused.output.split())
    assert topics.surveyor.registry.read().policies == {}


def test_retention_of_a_topic_that_is_not_there_is_refused(topics: SubscribedTopics) -> None:
    """A typing error in a nightly job would else look as if there were nothing to delete."""
    refused = _run(topics, "retention", "run", "no-such-topic")
    assert isinstance(refused.exception, TopicError)
    assert "no-such-topic" in str(refused.exception)


def test_a_limit_of_a_quota_leaves_the_other(topics: SubscribedTopics) -> None:
    """What is not given stays as it was set; nothing at all is refused."""
    for words, limit, limit_s, policy in (
        (("--limit", "10M", "-p", "producer_exception"), 10 << 20, -1, "producer_exception"),
        (("--limitTime", "1h"), 10 << 20, 3_600, "producer_exception"),
        (("--limit", "-1", "-p", "producer_request_hold"), -1, 3_600, "producer_request_hold"),
    ):
        _done(topics, "topic", "set-backlog-quota", "orders", *words)
        assert _shown(topics, "topic", "get-backlog-quota", "orders") == {
            "limit": limit,
            "limitTime": limit_s,
            "policy": policy,
        }
    assert _run(topics, "topic", "set-backlog-quota", "orders").exit_code == 2


def test_a_topic_comes_before_the_namespace(topics: SubscribedTopics) -> None:
    """Without a topic a command is about the default."""
    _done(topics, "topic", "set-message-ttl", "-ttl", "4h")
    _done(topics, "topic", "set-subscription-expiration-time", "-t", "1d")
    _done(topics, "topic", "set-message-ttl", "orders", "-ttl", "5")
    found = _shown(topics, "topic", "get", "orders")["inForce"]
    assert (found["messageTtlInSeconds"], found["subscriptionExpirationTimeMinutes"]) == (5, 1440)
    assert found["backlogQuota"]["limit"] == -1
    assert _shown(topics, "topic", "get", "other")["inForce"]["messageTtlInSeconds"] == 14_400
    table = _run(topics, "topic", "get", "orders").stdout
    assert "no limit" in table
    assert "namespace" in table
    assert "not set" in _run(topics, "topic", "get-retention", "orders").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("set-retention", "--time", "0", "--size", "1G"),
        ("set-retention", "--time", "1d", "--size", "0"),
        ("set-retention", "--time", "60", "--size", "1G"),
        ("set-backlog-quota", "--limit", "ten"),
        ("set-backlog-quota", "--limit", "0"),
    ],
)
def test_what_pulsar_refuses_is_refused(topics: SubscribedTopics, words: tuple[str, ...]) -> None:
    refused = _run(topics, "topic", words[0], "orders", *words[1:])
    assert isinstance(refused.exception, PolicyError)
    assert topics.surveyor.registry.read().policies == {}


@pytest.mark.parametrize(
    "words",
    [
        ("set-message-ttl", "--messageTTL", "-5"),
        ("set-subscription-expiration-time", "--time", "90s"),
        ("set-message-ttl",),
    ],
)
def test_what_makes_no_sense_is_refused(topics: SubscribedTopics, words: tuple[str, ...]) -> None:
    """By status 2: 0 and not a negative number is never."""
    assert _run(topics, "topic", words[0], "orders", *words[1:]).exit_code == 2


def test_retention_is_run(topics: SubscribedTopics, make_topic: MakeTopic) -> None:
    """A dry run shows it and deletes nothing; what is refused is told by the status, too."""
    topic = make_topic(1, retention_ms=-1)
    topics.fill(topic, 10)
    topics.subscribe("Subscription-1", topic)
    topics.acks("Subscription-1", topic, (0, 4))
    dry = _shown(topics, "retention", "run", "--dry-run")
    assert (dry["dryRun"], dry["records"], dry["partitions"][0]["after"]) == (True, 4, 4)
    assert topics.start_of(topic) == 0
    done = _run(topics, "retention", "run", topic)
    assert done.exit_code == 0
    assert "Deleted: 4 messages" in done.stdout
    assert "subscription Subscription-1" in done.stdout
    assert topics.start_of(topic) == 4
    short = make_topic(1, retention_ms=3_600_000)
    topics.subscribe("Subscription-2", short)
    refused = _run(topics, "retention", "run", short)
    assert refused.exit_code == 1
    assert "--despite-topic-retention" in refused.stdout
    assert _run(topics, "retention", "run", short, "--despite-topic-retention").exit_code == 0

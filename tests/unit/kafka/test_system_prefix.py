"""The names that an installation has once on a cluster, and the prefix that they have."""

from __future__ import annotations

import pytest

from sequitur.base.settings import Settings, load_settings
from sequitur.consumer.subscription.cursor_store import cursor_topic, transactional_id
from sequitur.consumer.subscription.led_checks import checks_group
from sequitur.consumer.subscription.registry import group_of_new
from sequitur.consumer.subscription.registry_store import backlog_id, registry_id
from sequitur.errors import SettingsError
from sequitur.kafka.control import control_topic
from sequitur.kafka.settings import KafkaSettings, to_reach


class _Job(Settings):
    kafka: KafkaSettings


def _load(environ: dict[str, str] | None = None, **flags: object) -> KafkaSettings:
    given = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9092", **(environ or {})}
    return load_settings(_Job, config=None, environ=given, flags=flags).kafka


def _names(kafka: KafkaSettings) -> list[str]:
    return [
        control_topic(kafka),
        cursor_topic(kafka),
        checks_group(kafka),
        group_of_new(kafka, "billing"),
        transactional_id(kafka, "billing"),
        registry_id(kafka),
        registry_id(kafka, "billing"),
        backlog_id(kafka),
    ]


@pytest.mark.promise("sub-two-installations-share")
@pytest.mark.parametrize("prefix", ["sequitur", "team_a", "eu.1"])
def test_names_are_prefixed(prefix: str) -> None:
    """Those of the default are what older versions have stored."""
    kafka = _load() if prefix == "sequitur" else _load(system_prefix=prefix)
    assert _names(kafka) == [
        f"{prefix}-subscriptions",
        f"{prefix}-cursors",
        f"{prefix}-subscription-checks",
        f"{prefix}-billing",
        f"{prefix}-subscription/billing",
        f"{prefix}-registry",
        f"{prefix}-registry/subscription/billing",
        f"{prefix}-registry/backlog",
    ]


def test_the_prefix_is_given_by_the_environment_too() -> None:
    assert _load({"SEQUITUR_KAFKA_SYSTEM_PREFIX": "team_a"}).system_prefix == "team_a"


@pytest.mark.parametrize("prefix", ["", "team-a", "a/b", "a b", "é", "a\n", "x" * 201])
def test_what_is_no_prefix_is_refused(prefix: str) -> None:
    """A `-` would let two prefixes have a name in common; Kafka refuses the others in topics."""
    with pytest.raises(SettingsError, match=r"^kafka\.system_prefix = .*expected letters, digits"):
        _load(system_prefix=prefix)


def test_names_of_the_longest_prefix_are_legal() -> None:
    kafka = _load(system_prefix="x" * 200)
    assert max(len(control_topic(kafka)), len(cursor_topic(kafka))) <= 249


def test_connections_do_not_differ_by_the_prefix() -> None:
    kafka = _load(system_prefix="team_a", ssl_ca=None)
    assert to_reach(kafka) == to_reach(_load()) == _load()

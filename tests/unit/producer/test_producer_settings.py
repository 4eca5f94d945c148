"""Settings of the producer that cannot hold are refused, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import SubscriptionNameError
from sequitur.producer import IdempotentProducer, KafkaSettings, ProducerSettings
from sequitur.producer.daemon.settings import ProduceSettings
from sequitur.spark import ExactlyOnceKafka, reorder
from sequitur.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_in_flight": 6}, "less than or equal to 5"),
        ({"max_in_flight": 0}, "greater than or equal to 1"),
        ({"name": "no spaces"}, "producer name 'no spaces'"),
        ({"compression": "brotli"}, "'none', 'gzip', 'snappy', 'lz4' or 'zstd'"),
        ({"linger": "2 s", "delivery_timeout": "1 s"}, "no event would ever be sent"),
        ({"retry_backoff": "2 s"}, "retry_backoff_max is smaller than retry_backoff"),
        ({"batch_size": 0}, "greater than 0"),
        ({"durability": "journal"}, "durability = journal: expected a directory in journal"),
        ({"durability": "journal-async"}, "expected a directory in journal"),
        ({"acks": 1}, "Extra inputs are not permitted"),
    ],
)
def test_what_would_break_a_promise_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ProducerSettings(**settings)


def test_no_flag_means_two_things() -> None:
    """The fields of the two sections are flags of one command, so no name is in both."""
    assert not set(ProducerSettings.model_fields) & set(ProduceSettings.model_fields)


@pytest.mark.parametrize(
    ("settings", "journaling"),
    [
        ({}, "none"),
        ({"journal": "somewhere"}, "journal"),
        ({"journal": "somewhere", "durability": "journal-async"}, "journal-async"),
        ({"journal": "somewhere", "durability": "none"}, "none"),
    ],
)
def test_a_directory_makes_events_durable(settings: dict[str, Any], journaling: str) -> None:
    """Unless it is said otherwise; without one there is no durable identity."""
    assert ProducerSettings(**settings).journaling == journaling


_ADDRESSES = ["a:1", "b:2"]


@pytest.mark.parametrize(
    "given",
    [_ADDRESSES, tuple(_ADDRESSES), dict.fromkeys(_ADDRESSES).keys(), ["a:1,b:2"], "a:1,b:2"],
)
def test_addresses_may_be_several(given: Any) -> None:
    """As aiokafka takes them, in any iterable; here and in a configuration."""
    for one in (given, (address for address in given) if not isinstance(given, str) else given):
        settings = KafkaSettings(bootstrap_servers=one)
        assert settings.bootstrap_servers == "a:1,b:2"
    assert IdempotentProducer(given)._kafka == settings
    assert ExactlyOnceKafka("t", checkpoint="/nowhere", kafka=given)._kafka == settings
    assert KafkaSettings(bootstrap_servers={"a:1"}).bootstrap_servers == "a:1"


_JOB = ReorderSettings(
    input_topics=["t"], output_topic="o", event_time="json:at", checkpoint="/nowhere"
)
_TAKERS: dict[str, Callable[[Any], object]] = {
    "producer": IdempotentProducer,
    "settings": lambda given: KafkaSettings(bootstrap_servers=given),
    "subscription": lambda given: Subscription(given, "s", "t", position="earliest"),
    "sink": lambda given: ExactlyOnceKafka("t", checkpoint="/nowhere", kafka=given),
    "job": lambda given: reorder(given, _JOB),
}


@pytest.mark.parametrize("take", _TAKERS.values(), ids=_TAKERS.keys())
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "expected host:port, or several, not NoneType"),
        (9092, "expected host:port, or several, not int"),
        ({"a:1": 1}, "expected host:port, or several, not dict"),
        (["a:1", None], "expected host:port, or several, not NoneType"),
        ([b"a:1"], "expected host:port, or several, not bytes"),
        ([["a:1"]], "expected host:port, or several, not list"),
        ([], "expected host:port, several separated by commas"),
        ("", "expected host:port, several separated by commas"),
        (["a:1", ""], "expected host:port, several separated by commas"),
        (["a"], "expected host:port, several separated by commas"),
    ],
)
def test_what_is_no_address_is_refused_at_the_call(
    take: Callable[[Any], object], given: Any, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        take(given)


_TAKERS_OF_TOPICS: dict[str, Callable[[Any], object]] = {
    "subscription": lambda given: Subscription("a:1", "s", given, position="earliest"),
    "sink": lambda given: ExactlyOnceKafka(given, checkpoint="/nowhere", kafka="a:1"),
    "dead letters": lambda given: Subscription(
        "a:1", "s", "t", dead_letter_topic=given, max_redeliver_count=1
    ),
}


@pytest.mark.parametrize("take", _TAKERS_OF_TOPICS.values(), ids=_TAKERS_OF_TOPICS.keys())
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "topic is int, expected str"),
        (b"t", "topic is bytes, expected str"),
        ("a b", "topic 'a b': expected a topic name"),
        ("half \ud83d", "expected a topic name"),
    ],
)
def test_what_is_no_topic_is_refused_at_the_call(
    take: Callable[[Any], object], given: Any, message: str
) -> None:
    """Before any broker is asked: a byte is no topic, and none of its name ever comes."""
    with pytest.raises((TypeError, ValueError), match=message):
        take(given)


def test_what_is_no_topic_is_refused_among_several() -> None:
    for given, kind in ((["t", None], "NoneType"), (None, "NoneType"), (["t", ["u"]], "list")):
        with pytest.raises(TypeError, match=f"topic is {kind}, expected str"):
            Subscription("a:1", "s", given, position="earliest")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, 5, b"s", ["s"]])
def test_a_subscription_is_named_by_a_text(name: Any) -> None:
    with pytest.raises(SubscriptionNameError, match="expected letters, digits"):
        Subscription("a:1", name, "t", position="earliest")

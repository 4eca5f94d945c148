"""The consumer at the top of docs/subscriptions.md, on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.support.pages import run, samples, section
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    import pytest

    from sequitur.producer import KafkaSettings
    from tests.conftest import MakeTopic


def test_the_consumer_of_the_page_prints_what_the_page_says(
    kafka: KafkaSettings,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = make_topic(1)
    client = Producer(kafka.librdkafka())
    client.produce(topic, b'{"item": "lamp"}', key=b"customer-7")
    assert client.flush(PATIENCE_S) == 0
    (sample,) = samples("subscriptions.md")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    here = sample.replace('"orders"', repr(topic)).replace("timeout_s=5", "timeout_s=1")
    run("subscriptions_page", here)
    shown = section("subscriptions.md", "Receive and acknowledge in Python").split("```\n")[2]
    assert capsys.readouterr().out == shown

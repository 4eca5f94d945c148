"""The consumer that docs/coming-from-pulsar.md moves, on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur import Subscription
from tests.support.open_subscriptions import fill
from tests.support.pages import run, samples

if TYPE_CHECKING:
    from sequitur.producer import KafkaSettings
    from tests.conftest import MakeTopic


class _EnoughError(Exception):
    pass


def test_the_consumer_of_the_page_acks_what_it_has_charged(
    kafka: KafkaSettings, make_topic: MakeTopic
) -> None:
    topic, letters = make_topic(1), make_topic(1)
    fill(kafka, topic, 4, keys=2)
    (sample,) = samples("coming-from-pulsar.md")
    here = sample.replace('"orders"', repr(topic)).replace('"billing-dead"', repr(letters))
    charged: list[tuple[bytes, bytes]] = []

    def charge(key: bytes, value: bytes) -> None:
        charged.append((key, value))
        if len(charged) == 4:
            raise _EnoughError

    with pytest.raises(_EnoughError):
        run("pulsar_page", here)["consume"](kafka, charge)
    assert sorted(value for _, value in charged) == [b"0", b"1", b"2", b"3"]
    with Subscription(kafka, "billing", topic, type="Key_Shared") as subscription:
        assert subscription.stats().backlog == 1  # the last one was not acked

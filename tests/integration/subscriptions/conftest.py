"""What tests of subscriptions share."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sequitur.producer import KafkaSettings
from tests.support.subscribed_topics import SubscribedTopics

if TYPE_CHECKING:
    from tests.support.brokers import Broker


@pytest.hookimpl(tryfirst=True)  # before groups are made of marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Topics and group of subscriptions are one for a whole cluster."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.own_broker)


@pytest.fixture
def kafka(broker: Broker) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=broker.bootstrap_servers)


@pytest.fixture
def name() -> str:
    return f"sub-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topics(broker: Broker) -> SubscribedTopics:
    return SubscribedTopics(broker.bootstrap_servers)

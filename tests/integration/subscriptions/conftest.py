"""What tests of subscriptions share."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.subscribed_topics import SubscribedTopics

if TYPE_CHECKING:
    from sequitur.producer import KafkaSettings


@pytest.fixture
def name() -> str:
    return f"sub-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topics(kafka: KafkaSettings) -> SubscribedTopics:
    return SubscribedTopics(kafka)

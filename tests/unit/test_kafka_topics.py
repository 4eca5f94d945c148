"""The job's admin client, where no broker answers."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from consumer import SourcePartition
from pipelines import _kafka_topics
from pipelines._errors import TopicError
from pipelines._kafka_topics import KafkaTopics
from producer import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (
            lambda topics: topics.high_watermarks([SourcePartition("t", 0)]),
            "do not tell the topics' ends: no answer in 0.01 s",
        ),
        (
            lambda topics: topics.ensure("t", partitions=1, replication_factor=1),
            "topic 't' cannot be created: no answer in 0.01 s",
        ),
    ],
)
def test_no_answer_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[KafkaTopics], Any], complaint: str
) -> None:
    """Our patience may end before the client's own: then there is no error of Kafka's to tell."""
    monkeypatch.setattr(_kafka_topics, "_TIMEOUT_S", 0.01)
    topics = KafkaTopics(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    silent: Future[Any] = Future()
    admin = SimpleNamespace(
        list_offsets=lambda wanted, **_: dict.fromkeys(wanted, silent),
        list_topics=lambda **_: SimpleNamespace(topics={}),
        create_topics=lambda _topics, **_: {"t": silent},
    )
    monkeypatch.setattr(topics, "_admin", admin)
    with pytest.raises(TopicError, match=complaint):
        ask(topics)

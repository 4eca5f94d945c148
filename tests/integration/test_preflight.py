"""What a job's topics are refused for before Spark starts, on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer import ReorderSettings
from sequitur.errors import TopicError
from sequitur.pipelines.ordering.preflight import check_before_start
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


@pytest.mark.promise("cli-job-run-broker", "order-output-topic-compacted")
def test_topics_are_looked_at_before_spark_starts(
    broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Missing ones, one that is read and written, a number of partitions that is not so.

    And side topics that are compacted.
    """
    topic = make_topic()
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)

    def check(**settings: Any) -> None:
        given = {
            "output_topic": f"{topic}.ordered",
            "event_time": "json:at",
            "checkpoint": str(tmp_path / "state"),
        }
        check_before_start(kafka, ReorderSettings.model_validate(given | settings))

    check(input_topics=[topic])
    check(input_pattern=f"{topic}(-.*)?")
    check(input_pattern=r"\p{Alnum}+")  # Java's own: left to the job
    with pytest.raises(TopicError, match="input topic 'no-such-topic' does not exist"):
        check(input_topics=[topic, "no-such-topic"])
    with pytest.raises(TopicError, match="matches no topic"):
        check(input_pattern="no-such-.*")
    with pytest.raises(TopicError, match=r"matches '.*\.ordered', which the job writes"):
        check(input_pattern=f"{topic}.*")
    with pytest.raises(TopicError, match=r"matches '.*-copies', which the job writes"):
        check(input_pattern=f"{topic}(-.*)?", evicted_topic=f"{topic}-copies", subscription="s")
    output = make_topic(partitions=2)
    with pytest.raises(TopicError, match="has 2 partitions, not output_partitions = 5"):
        check(input_topics=[topic], output_topic=output, output_partitions=5)
    compacted = make_topic(cleanup_policy="compact,delete")
    for aside in ("late_topic", "quarantine_topic"):
        with pytest.raises(TopicError, match=f"topic '{compacted}' is compacted"):
            check(input_topics=[topic], **{aside: compacted})
    check(input_topics=[topic], output_topic=compacted)

"""A job on the local runner under which somebody deletes what it needs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from sequitur.errors import CheckpointError, OutputMismatchError, TopicError
from sequitur.kafka.settings import KafkaSettings
from tests.support.events import Event
from tests.support.local_jobs import LocalJob
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

pytestmark = pytest.mark.test_all

_T0 = 1_700_000_000_000


@pytest.fixture
def job(broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> LocalJob:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    return LocalJob(kafka, make_topic(partitions=1), tmp_path, delay="0 s", patience="10 min")


def _fails_after(job: LocalJob, deletes: Callable[[], object]) -> None:
    """Let the job release a row, delete something under it, and send rows until it ends."""
    sent = 0

    def is_over() -> bool:
        nonlocal sent
        sent += 1
        job.send([Event(value=b'{"at": %d}' % (_T0 + sent * 1_000), key=b"k")])
        return not life.is_alive()

    with job.running() as life:
        wait_until(lambda: is_over() or any(done.totals.released for _, done in job.steps))
        deletes()
        wait_until(is_over)


@pytest.mark.promise("order-output-topic-deleted")
def test_output_topic_is_not_waited_for(job: LocalJob) -> None:
    """It is gone for good, and the error says what to do."""
    admin, out = AdminClient(job.kafka.librdkafka()), job.settings.output_topic

    def delete() -> None:
        admin.delete_topics([out])[out].result(PATIENCE_S)

    with pytest.raises(
        (TopicError, OutputMismatchError), match=f"{out}.*deleted.* a checkpoint and an app of its"
    ):
        _fails_after(job, delete)


@pytest.mark.promise("order-checkpoint-deleted")
def test_checkpoint_that_is_gone_is_named(job: LocalJob) -> None:
    with pytest.raises(CheckpointError, match="was deleted or moved while the job ran"):
        _fails_after(job, lambda: shutil.rmtree(job.settings.checkpoint, ignore_errors=True))

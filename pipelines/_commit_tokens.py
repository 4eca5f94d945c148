"""Commit tokens on the brokers, as the driver sees them: checked at the start, kept from expiring.

What the tokens mean, and what is decided by them, stands in `consumer._commit_token`. Tasks commit
theirs inside the transaction that writes the rows (`_partition_writer`); the driver commits only
between two steps, when no task can.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, Protocol

from consumer import OutputPartition, commits_group, read_token, renewed_tokens
from pipelines._connections import Connections
from pipelines._errors import CheckpointError, TopicError, TransactionError
from producer import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from producer import KafkaSettings

DELIVERY_FORMAT: Final = 1
_IDENTITY: Final = "delivery.json"
_ESTABLISHED: Final = "delivery-established.json"
_RENEWED_EACH_S: Final = 3600.0
"""Offsets expire after a week unless a broker is told otherwise, and some partitions, of the late
topic above all, get no rows for longer."""


class Documents(Protocol):
    """A folder that keeps documents: the job's checkpoint."""

    @property
    def root(self) -> str:
        """Where it is."""

    def read_document(self, name: str) -> dict[str, Any] | None:
        """A document; None when there is none."""

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """Write one that is not there yet, whole or not at all."""


class CommitTokens:
    """The tokens of a job's output partitions.

    Args:
        kafka: How to reach the brokers.
        app: The job's name in Kafka.
        documents: The job's checkpoint, claimed already.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        app: str,
        documents: Documents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kafka = kafka
        self._group = commits_group(app)
        self._documents = documents
        self._clock = clock
        self._job = self._job_id(app)
        self._partitions: Mapping[str, int] = {}
        self._renewed_s = clock()

    @property
    def job(self) -> str:
        """Id of the checkpoint: tokens of another are not ours."""
        return self._job

    def open(self, partitions: Mapping[str, int], *, newest: int, done: int) -> None:
        """Check all tokens, and see to it that each partition has one.

        Args:
            partitions: Number of partitions of each output topic.
            newest: The newest step that was begun; -1 before the first.
            done: The newest step that is done.

        Raises:
            CommitTokenError: It is not known what an output partition holds, or it is not ours.
            TopicError: The brokers do not answer.
        """
        self._partitions = dict(partitions)
        self._renew(newest=newest, done=done)
        if self._documents.read_document(_ESTABLISHED) is None:
            self._documents.write_document(_ESTABLISHED, {"format": DELIVERY_FORMAT})

    def step_is_done(self, step: int) -> None:
        """Commit all tokens anew when they have not been for long; no task may be running.

        Raises:
            CommitTokenError: A token is not ours any more.
            TopicError: The brokers do not answer.
        """
        if self._clock() - self._renewed_s >= _RENEWED_EACH_S:
            self._renew(newest=step, done=step)

    def _renew(self, *, newest: int, done: int) -> None:
        where = [
            OutputPartition(topic, partition)
            for topic, count in self._partitions.items()
            for partition in range(count)
        ]
        try:
            with contextlib.closing(Connections(self._kafka)) as connections:
                self._renew_on(connections, where, newest=newest, done=done)
        except (BrokerError, TransactionError) as error:
            raise TopicError(f"the commit tokens cannot be read or renewed: {error}") from error
        self._renewed_s = self._clock()

    def _renew_on(
        self, connections: Connections, where: list[OutputPartition], *, newest: int, done: int
    ) -> None:
        offsets = connections.run(connections.coordinators.offsets(self._group, where))
        renewed = renewed_tokens(
            {partition: read_token(partition, *offset) for partition, offset in offsets.items()},
            job=self._job,
            done=done,
            newest=newest,
            is_established=self._documents.read_document(_ESTABLISHED) is not None,
            partitions=self._partitions,
        )
        if renewed:
            tokens = {where: (token.offset, token.metadata) for where, token in renewed.items()}
            connections.run(connections.coordinators.commit(self._group, tokens))

    def _job_id(self, app: str) -> str:
        document = self._documents.read_document(_IDENTITY)
        if document is None:
            document = {"format": DELIVERY_FORMAT, "job": uuid.uuid4().hex, "app": app}
            self._documents.write_document(_IDENTITY, document)
        if document.get("format") != DELIVERY_FORMAT:
            raise CheckpointError(
                f"{self._documents.root}: {_IDENTITY} has format {document.get('format')}; "
                f"this version reads {DELIVERY_FORMAT}"
            )
        if document["app"] != app:
            raise CheckpointError(
                f"{self._documents.root} belongs to a job with app = {document['app']!r}, "
                f"not {app!r}: its commit tokens are kept under that name"
            )
        return str(document["job"])

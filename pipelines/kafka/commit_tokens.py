"""Commit tokens on the brokers, as the driver sees them: checked at the start, kept from expiring.

`sequitur.consumer._commit_token` says what tokens mean, and decides by them.
Tasks commit theirs inside the transaction that writes the rows (`sink.partition_writer`); the
driver commits only between two steps, when no task can.

The driver commits as tasks do: under the partition's transactional id, which it takes before it
reads the token. So a driver thought dead that goes on, with a token that it read before a newer
driver wrote, is fenced, and overwrites no newer token.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sequitur.consumer import OutputPartition, commits_group, read_token, renewed_tokens
from sequitur.pipelines._errors import (
    CheckpointError,
    TopicError,
    TransactionError,
    TransactionFencedError,
    TransactionOutcomeError,
    TransactionUnansweredError,
    UnansweredError,
)
from sequitur.pipelines.kafka.connections import Connections
from sequitur.pipelines.kafka.outages import brief_outages
from sequitur.pipelines.kafka.transaction import Transaction, TransactionNames
from sequitur.producer import BrokerError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sequitur.consumer import CommitToken
    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.producer import KafkaSettings

_Found = TypeVar("_Found")
DELIVERY_FORMAT: Final = 1
_IDENTITY: Final = "delivery.json"
_ESTABLISHED: Final = "delivery-established.json"
_TRANSACTION_TIMEOUT_MS: Final = 60_000
_PASSING: Final = (
    RetriableError,
    TransactionUnansweredError,
    TransactionOutcomeError,  # the token that is read again says what became of it
    TransactionFencedError,  # so does the token of the id's newer holder
)
_RENEWED_EACH_S: Final = 3600.0
"""Offsets expire after a week unless a broker is told otherwise, and some partitions, of the late
topic above all, get no rows for longer."""


class Documents(Protocol):
    """A folder of documents: the job's checkpoint."""

    @property
    def root(self) -> str:
        """Where it is."""

    def read_document(
        self, name: str, meaning: Callable[[dict[str, Any]], _Found]
    ) -> _Found | None:
        """Return what a document says; None when there is none."""

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a document that does not exist yet, whole or not at all."""


class CommitTokens:
    """The tokens of a job's output partitions.

    Args:
        kafka: How to reach the brokers.
        app: The job's name in Kafka.
        documents: The job's checkpoint, claimed already.
        outages: How long brokers that do not answer are waited for.
        transaction_timeout_ms: The brokers abort a transaction that is open for longer.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        app: str,
        documents: Documents,
        outages: Outages | None = None,
        transaction_timeout_ms: int = _TRANSACTION_TIMEOUT_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kafka = kafka
        self._app = app
        self._group = commits_group(app)
        self._timeout_ms = transaction_timeout_ms
        self._documents = documents
        self._clock = clock
        self._outages = outages or brief_outages()
        self._job = self._job_id(app)
        self._partitions: Mapping[str, int] = {}
        self._renewed_s = clock()

    @property
    def job(self) -> str:
        """The checkpoint's id: tokens with another id are another checkpoint's."""
        return self._job

    def open(
        self,
        partitions: Mapping[str, int],
        *,
        newest: int,
        done: int,
        written: Collection[str] | None = None,
    ) -> None:
        """Check all tokens, and commit those that are missing.

        Args:
            partitions: Number of partitions of each output topic.
            newest: The newest step that was begun; -1 before the first.
            done: The newest step that is done.
            written: The topics that the newest writes to, if it is not done; None for all.

        Raises:
            CommitTokenError: It is unknown what an output partition holds, or a token is another
                checkpoint's.
            TopicError: The brokers do not answer.
        """
        self._partitions = dict(partitions)
        self._renew(newest=newest, done=done, written=written)
        if self._documents.read_document(_ESTABLISHED, dict) is None:
            self._documents.write_document(_ESTABLISHED, {"format": DELIVERY_FORMAT})

    def step_is_done(self, step: int) -> None:
        """Commit all tokens again when that was long ago; no task may be running.

        Raises:
            CommitTokenError: A token is another checkpoint's by now.
            TopicError: The brokers do not answer.
        """
        if self._clock() - self._renewed_s >= _RENEWED_EACH_S:
            self._renew(newest=step, done=step)

    def _renew(self, *, newest: int, done: int, written: Collection[str] | None = None) -> None:
        where = [
            OutputPartition(topic, partition)
            for topic, count in self._partitions.items()
            for partition in range(count)
        ]

        def renew() -> None:
            with contextlib.closing(Connections(self._kafka)) as connections:
                self._renew_on(connections, where, newest=newest, done=done, written=written)

        try:
            self._outages.outlast(renew, _passes)
        except (BrokerError, TransactionError, TransactionOutcomeError) as error:
            told = f"the commit tokens cannot be read or renewed: {error}"
            raise (TopicError if _passes(error) is None else UnansweredError)(told) from error
        self._renewed_s = self._clock()

    def _renew_on(
        self,
        connections: Connections,
        where: list[OutputPartition],
        *,
        newest: int,
        done: int,
        written: Collection[str] | None,
    ) -> None:
        is_established = self._documents.read_document(_ESTABLISHED, dict) is not None
        coordinators = connections.coordinators

        def renewed(of: list[OutputPartition]) -> dict[OutputPartition, CommitToken]:
            offsets = connections.run(coordinators.offsets(self._group, of))
            return renewed_tokens(
                {place: read_token(place, *offset) for place, offset in offsets.items()},
                job=self._job,
                done=done,
                newest=newest,
                is_established=is_established,
                partitions=self._partitions,
                written=written,
            )

        committed: dict[OutputPartition, tuple[int, str]] = {}
        for place in renewed(where):
            names = TransactionNames.of(self._app, place, self._timeout_ms)
            transaction = Transaction(connections.wire, coordinators, place, names)
            connections.run(transaction.open())
            # From here on another writer of a token there fences this one.
            for token in renewed([place]).values():
                connections.run(transaction.commit(token.offset, token.metadata))
                committed[place] = token.offset, token.metadata
        connections.run(coordinators.await_offsets(self._group, committed))

    def _job_id(self, app: str) -> str:
        found = self._documents.read_document(_IDENTITY, _whose)
        if found is None:
            found = uuid.uuid4().hex, app
            document = {"format": DELIVERY_FORMAT, "job": found[0], "app": app}
            self._documents.write_document(_IDENTITY, document)
        job, known = found
        if known != app:
            raise CheckpointError(
                f"{self._documents.root} belongs to a job with app = {known!r}, "
                f"not {app!r}: its commit tokens are kept under that name"
            )
        return job


def _whose(document: Mapping[str, Any]) -> tuple[str, str]:
    """Return id of the checkpoint and name of the job, as they stand in a document."""
    if document.get("format") != DELIVERY_FORMAT:
        raise ValueError(
            f"it has format {document.get('format')}; this version reads {DELIVERY_FORMAT}"
        )
    return str(document["job"]), str(document["app"])


def _passes(error: Exception) -> str | None:
    return str(error) if isinstance(error, _PASSING) else None

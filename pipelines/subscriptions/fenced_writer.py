"""Writes to compacted topics, all or nothing, and only as long as nobody else has begun to.

A transactional id has one owner: whoever asked for it last. Kafka refuses everything that former
owners write, so a process that was paused, or that is cut off, changes nothing when it goes on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException, Producer

from sequitur.pipelines._errors import SubscriptionFencedError, TopicError, UnansweredError
from sequitur.pipelines.kafka.outages import brief_outages
from sequitur.producer.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import KafkaError

    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.producer import KafkaSettings

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""After so long a broker ends the transaction of a process that died."""
_CALL_S: Final = 10.0


class TopicWrite(NamedTuple):
    """A record to write; its key is deleted where it has no value."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None


class FencedWriter:
    """The owner of a transactional id, from its creation on.

    Args:
        kafka: How to reach the brokers.
        transactional_id: What is owned.
        name: What that is, for errors, such as ``subscription 'billing'``.
        outages: How long what passes is waited for.

    Raises:
        TopicError: The brokers refuse, or do not answer.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        transactional_id: str,
        *,
        name: str,
        outages: Outages | None = None,
    ) -> None:
        self._name = name
        self._outages = outages or brief_outages()
        self._begun = False
        self.is_fenced = False
        self._producer = Producer(
            {
                **kafka.librdkafka(),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
            }
        )
        self._asked(lambda: self._producer.init_transactions(_CALL_S))

    def write(self, records: Iterable[TopicWrite]) -> None:
        """Write records, all or nothing.

        Raises:
            SubscriptionFencedError: Somebody else has begun to write.
            TopicError: The brokers refuse, or do not answer; nothing is written, or all.
        """
        wanted = list(records)

        def attempt() -> None:
            self._end_begun()
            self._producer.begin_transaction()
            self._begun = True
            for one in wanted:
                self._produce(one)
            self._again(lambda: self._producer.commit_transaction(_CALL_S))
            self._begun = False

        self._asked(attempt)

    def close(self) -> None:
        """Let go of the connection; what is owned stays owned until somebody else asks."""
        with contextlib.suppress(KafkaException):  # one that is fenced says so once more
            self._producer.purge()

    def _produce(self, one: TopicWrite) -> None:
        try:
            self._producer.produce(one.topic, value=one.value, key=one.key, partition=one.partition)
        except KafkaException:
            # Where a record before has met what ends the client, this tells what it was.
            self._end_begun()
            raise

    def _end_begun(self) -> None:
        """Take back what a failed attempt has begun."""
        if self._begun:
            self._producer.purge()
            self._producer.abort_transaction(_CALL_S)
            self._begun = False

    def _again(self, call: Callable[[], object]) -> None:
        """Make a call until it is carried out: of one that timed out nobody knows what it did."""

        def passes(error: Exception) -> str | None:
            if isinstance(error, KafkaException) and _passes(error.args[0]):
                return self._said(error)
            return None

        self._outages.outlast(call, passes)

    def _asked(self, attempt: Callable[[], object]) -> None:
        """Make an attempt, and others while what it fails of may pass."""

        def passes(error: Exception) -> str | None:
            if not isinstance(error, KafkaException):
                return None
            reason = error.args[0]
            return self._said(error) if _may_pass(reason) else None

        try:
            self._outages.outlast(attempt, passes)
        except KafkaException as error:
            reason = error.args[0]
            if _follows(reason) is Action.FENCED:
                self.is_fenced = True
                raise SubscriptionFencedError(
                    f"{self._name} was taken over by another process, which goes on from what was "
                    "acked last; nothing was written"
                ) from error
            kind = UnansweredError if _may_pass(reason) else TopicError
            raise kind(self._said(error)) from error

    def _said(self, error: KafkaException) -> str:
        return f"{self._name} cannot be written: {error.args[0].str()}"


def _may_pass(reason: KafkaError) -> bool:
    """Tell whether another attempt may get through, with a transaction of its own."""
    is_over = reason.fatal() or _follows(reason) is Action.FENCED
    return not is_over and (reason.txn_requires_abort() or _passes(reason))


def _passes(reason: KafkaError) -> bool:
    """Tell whether the same call may get through."""
    is_over = reason.fatal() or reason.txn_requires_abort()
    return not is_over and _follows(reason) is Action.RETRY


def _follows(reason: KafkaError) -> Action:
    return action_of(Request.TRANSACTION, reason.code())

"""Writes to compacted topics, all or nothing, and only as long as nobody else has begun to.

A transactional id has one owner: the process that asked for it last. Kafka refuses everything that
former owners write. So a process that was paused, or that is cut off, changes nothing when it goes
on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from sequitur.base.retry import brief_outages
from sequitur.errors import (
    ReorderError,
    SubscriptionFencedError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from sequitur.base.retry import Outages
    from sequitur.kafka.settings import KafkaSettings


TRANSACTION_TIMEOUT_MS: Final = 10_000
"""A broker ends the transaction of a dead process after so long."""
_CALL_S: Final = 10.0
_NO_KEY: Final = b'["none","none"]'
"""The key of a record that is never committed."""


class FencedWriter:
    """The owner of a transactional id, from its creation on, for as long as its writes succeed.

    A client whose transaction failed is over: what is known of it here and at the broker may differ
    for good (INVALID_TXN_STATE after a broker's restart). To go on, a caller makes another writer,
    which ends what the failed one left. Then it looks whether another process has taken over.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        transactional_id: str,
        *,
        name: str,
        writes_to: tuple[str, int] | None = None,
        beside: Collection[tuple[str, int]] = (),
        outages: Outages | None = None,
        client: Callable[[dict[str, Any]], Producer] = Producer,
    ) -> None:
        self._name = name
        self._outages = outages or brief_outages()
        self._failure: ReorderError | None = None
        self._producer = client(
            {
                **kafka.librdkafka(),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
            }
        )
        with self._told(another_may=False):
            self._again(self._outages, lambda: self._producer.init_transactions(_CALL_S))
        if writes_to is not None:
            with self._told(another_may=True):
                self._end_hanging(writes_to, *beside)

    @property
    def is_over(self) -> bool:
        """Whether a transaction has failed. Each further write then fails with the same error."""
        return self._failure is not None

    def write(self, records: Iterable[TopicWrite], outages: Outages | None = None) -> None:
        """Write records, all or nothing. `outages` replaces the writer's own waits."""
        if self._failure is not None:
            raise self._failure
        wanted = list(records)
        try:
            with self._told(another_may=True):
                self._producer.begin_transaction()
                for one in wanted:
                    self._produce(one)
                self._again(
                    outages or self._outages, lambda: self._producer.commit_transaction(_CALL_S)
                )
        except ReorderError as error:
            self._failure = error
            raise

    def close(self) -> None:
        """Let go of the connection. Ownership stays until another process takes it."""
        with contextlib.suppress(KafkaException):  # a fenced client raises that again
            self._producer.purge()

    def _end_hanging(self, *places: tuple[str, int]) -> None:
        """End what a broker's partitions hold open, and its coordinator has forgotten.

        After a SIGKILL of the broker this was seen: a record in the log, the transaction in no
        coordinator's, so that readers would wait for its end for ever. The marker of any later
        transaction of this producer id ends it.
        """
        self._producer.begin_transaction()
        for topic, partition in places:
            self._producer.produce(topic, value=None, key=_NO_KEY, partition=partition)
        self._producer.flush(_CALL_S)
        self._producer.abort_transaction(_CALL_S)

    def _produce(self, one: TopicWrite) -> None:
        try:
            self._producer.produce(one.topic, value=one.value, key=one.key, partition=one.partition)
        except KafkaException as error:
            refused = error
        else:
            return
        # The error is no longer being handled here: else the client's next error would keep it for
        # good; see `Retry`.
        try:
            # If an earlier record met the error that ends the client, this shows the error.
            self._producer.purge()
            self._producer.abort_transaction(_CALL_S)
            raise refused
        finally:
            del refused

    def _again(self, outages: Outages, call: Callable[[], object]) -> None:
        """Repeat a call until it succeeds: after a timeout nobody knows what it did."""

        def passes(error: Exception) -> str | None:
            if isinstance(error, KafkaException) and _passes(error.args[0]):
                return self._said(error)
            return None

        outages.outlast(call, passes)

    @contextlib.contextmanager
    def _told(self, *, another_may: bool) -> Iterator[None]:
        """Raise a client's error as one of our errors."""
        try:
            yield
        except KafkaException as error:
            reason = error.args[0]
            if _follows(reason) is Action.FENCED:
                raise SubscriptionFencedError(
                    f"{self._name} was taken over by another process, which resumes from the "
                    "last acks. Nothing was written"
                ) from error
            ends_client = reason.fatal() or reason.txn_requires_abort()
            passes = another_may if ends_client else _passes(reason)
            raise (UnansweredError if passes else TopicError)(self._said(error)) from error

    def _said(self, error: KafkaException) -> str:
        return f"{self._name} cannot be written: {error.args[0].str()}"


class TopicWrite(NamedTuple):
    """A record to write. Without a value it deletes its key."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None


def _passes(reason: KafkaError) -> bool:
    """Tell whether the same call may succeed later."""
    is_over = reason.fatal() or reason.txn_requires_abort()
    return not is_over and _follows(reason) is Action.RETRY


def _follows(reason: KafkaError) -> Action:
    return action_of(Request.TRANSACTION, reason.code())

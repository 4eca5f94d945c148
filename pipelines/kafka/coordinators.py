"""Coordinators, the brokers that keep groups' offsets and transactions: asked until they answer.

All requests here are idempotent, so each is repeated while its coordinator moves, starts, or gives
no answer.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.commit import OffsetFetchRequest

from sequitur.consumer import OutputPartition
from sequitur.pipelines._errors import (
    TransactionError,
    TransactionFencedError,
    TransactionUnansweredError,
)
from sequitur.producer import FatalError, RetriableError
from sequitur.producer.kafka.backoff import Backoff
from sequitur.producer.kafka.error_codes import (
    NO_ERROR,
    Action,
    Request,
    action_of,
    meaning_of,
)
from sequitur.producer.kafka.wire import CoordinatorKind, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_BACKOFF: Final = Backoff(initial_ms=5, maximum_ms=500, jitter=0)


class Attempts:
    """Attempts at one thing, with growing pauses between them.

    Args:
        patience_s: How long they may take together.
        message: The message of the error in the end.
    """

    def __init__(self, patience_s: float, message: str) -> None:
        self._deadline = time.monotonic() + patience_s
        self._message = message
        self._failures = 0

    async def pause(self) -> None:
        """Wait before the next attempt.

        Raises:
            TransactionUnansweredError: The time is over.
        """
        if time.monotonic() > self._deadline:
            raise TransactionUnansweredError(self._message)
        self._failures += 1
        await asyncio.sleep(_BACKOFF.delay_ms(self._failures) / 1000)


class Coordinators:
    """Asks coordinators, and remembers where they are.

    Args:
        wire: Connections to the brokers, started.
        patience_s: How long an answer is sought.
    """

    def __init__(self, wire: Wire, *, patience_s: float) -> None:
        self._wire = wire
        self._patience_s = patience_s
        self._nodes: dict[tuple[CoordinatorKind, str], int] = {}

    async def ask(
        self, kind: CoordinatorKind, key: str, request: Any, code_of: Callable[[Any], int]
    ) -> Any:
        """Return the answer to a request, retried while its error is retriable.

        Args:
            kind: Which of a name's coordinators.
            key: The group or transactional id.
            request: One that may be repeated.
            code_of: The error code in an answer.

        Raises:
            TransactionError: No answer came, or the coordinator refused.
            TransactionFencedError: A newer holder has the transactional id.
        """
        what = type(request).__name__.removesuffix("Request")
        attempts = self.attempts(f"{key}: {what} has no answer")
        while True:
            try:
                answer = await self._wire.ask(await self._node(kind, key), request)
            except RetriableError:
                self._nodes.pop((kind, key), None)
            except FatalError as error:
                raise TransactionError(f"{key}: {what}: {error}") from error
            else:
                code = code_of(answer)
                match action_of(Request.TRANSACTION, code):
                    case Action.DONE:
                        return answer
                    case Action.FIND_COORDINATOR:
                        self._nodes.pop((kind, key), None)
                    case action if action is not Action.RETRY:
                        raise error_of(f"{key}: {what}", code)
            await attempts.pause()

    def attempts(self, message: str) -> Attempts:
        """Return attempts within the given patience."""
        return Attempts(self._patience_s, message)

    async def offsets(
        self, group: str, partitions: Iterable[OutputPartition]
    ) -> dict[OutputPartition, tuple[int, str | None]]:
        """Return a group's offset for each partition, negative without one, and its metadata.

        Raises:
            TransactionError: The coordinator does not answer, or refuses.
        """
        answer = await self.ask(
            CoordinatorKind.GROUP,
            group,
            OffsetFetchRequest(group, _by_topic((where, where.partition) for where in partitions)),
            lambda answer: answer.error_code or _first_code(answer.topics),
        )
        return {
            OutputPartition(topic, partition): (offset, metadata)
            for topic, found in answer.topics
            for partition, offset, metadata, _code in found
        }

    async def await_offsets(
        self, group: str, offsets: Mapping[OutputPartition, tuple[int, str]]
    ) -> None:
        """Wait until a group has offsets that were committed in transactions.

        A commit is answered when it is decided; the group's coordinator hears of it a moment later.

        Raises:
            TransactionError: The coordinator does not have them, does not answer, or refuses.
        """
        attempts = self.attempts(f"{group}: the committed offsets are not visible")
        while offsets and await self.offsets(group, offsets) != offsets:
            await attempts.pause()

    async def _node(self, kind: CoordinatorKind, key: str) -> int:
        if (kind, key) not in self._nodes:
            self._nodes[kind, key] = await self._wire.coordinator(kind, key)
        return self._nodes[kind, key]


def error_of(what: str, code: int) -> TransactionError:
    """Return what a broker's error code means for the transaction."""
    if action_of(Request.TRANSACTION, code) is Action.FENCED:
        return TransactionFencedError(
            f"{what}: fenced: a newer attempt has the transaction's name, or it was open for "
            "longer than transaction_timeout"
        )
    meaning = meaning_of(code)
    return TransactionError(f"{what}: {meaning.name}{meaning.hint}")


def _by_topic(of: Iterable[tuple[OutputPartition, Any]]) -> list[tuple[str, list[Any]]]:
    found: dict[str, list[Any]] = {}
    for where, item in of:
        found.setdefault(where.topic, []).append(item)
    return list(found.items())


def _first_code(topics: Iterable[Any]) -> int:
    """Return the first error of a list of partitions whose last field is one; 0 without."""
    codes = (partition[-1] for _topic, partitions in topics for partition in partitions)
    return next((code for code in codes if code != NO_ERROR), NO_ERROR)

"""Waits for what an admin client was asked, and says what is wrong where no answer comes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from sequitur.errors import TopicError, UnansweredError
from sequitur.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from sequitur.base.outages import Outages

    T = TypeVar("T")


def answered(
    outages: Outages,
    request: Request,
    message: str,
    ask: Callable[[], T],
    *,
    timeout_s: float,
    before_next: Callable[[], object] = bool,
) -> T:
    """Wait for the brokers' answer, and return it."""
    briefly_until_s = time.monotonic() + timeout_s

    def sentence(error: Exception) -> str:
        is_kafkas = isinstance(error, KafkaException)
        return f"{message}: {error if is_kafkas else f'no answer in {timeout_s:g} s'}"

    def passes(error: Exception) -> str | None:
        if isinstance(error, KafkaException):
            match action_to(request, error):
                case Action.RETRY:
                    pass
                case Action.RETRY_BRIEFLY if time.monotonic() < briefly_until_s:
                    pass
                case _:
                    return None
        elif not isinstance(error, TimeoutError):
            return None
        before_next()
        return sentence(error)

    try:
        return outages.outlast(ask, passes)
    except (KafkaException, TimeoutError) as error:
        kind = TopicError if passes(error) is None else UnansweredError
        raise kind(sentence(error)) from error


def action_to(request: Request, error: KafkaException) -> Action:
    """Return what is to be done about an error."""
    return action_of(request, error.args[0].code())

"""What a failed task, or the driver, tells of rows that could not be sent."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from sequitur.base.text import named
from sequitur.errors import FencedError, OutputMismatchError, SinkError, SinkUnansweredError
from sequitur.pipelines._stop import StopRequestedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sequitur.pipelines.workers import Workers


_UNANSWERED: Final = re.compile(
    "(SendUnanswered|SendRefused|Retriable|OutcomeUnknown|BrokerUnreachable)Error: "
)
"""What a task raises for brokers that do not answer, or do not take a row as a topic is set now."""
_RAISED: Final = re.compile("(OutputMismatch|LostRows|Fenced)Error: (.*)", re.DOTALL)


@contextlib.contextmanager
def errors_of_sending(workers: Workers, step: int, topics: Iterable[str]) -> Iterator[None]:
    """Turn an error of a block or its tasks into one that says what was to be written."""
    try:
        yield
    except (OutputMismatchError, StopRequestedError):
        raise
    except Exception as error:
        names = ", ".join(map(repr, topics))
        reason = workers.reason_of(error) or named(error)
        if (raised := _RAISED.match(reason)) is not None:
            told = f"step {step}: {raised[2]}"
            raise (FencedError if raised[1] == "Fenced" else OutputMismatchError)(told) from error
        kind = SinkUnansweredError if _UNANSWERED.match(reason) else SinkError
        raise kind(f"step {step} cannot be written to {names}: {reason}") from error

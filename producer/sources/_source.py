"""What a source is, with its settings, and the intake that takes its events.

A source reads; the intake puts what it read into the journal and sends it to Kafka. One rule makes
the way from a file to the topic exactly once: *a position is journaled in the same round as the
events it covers*. So after a crash the journal holds either both or neither, and the source goes on
from the position it finds there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from sequitur.base.json_field import parse_key
from sequitur.base.log import Logger
from sequitur.base.settings import Section, Words
from sequitur.base.text import encodable
from sequitur.errors import SourceError
from sequitur.producer.sources._lines import EventParser, parse_header

if TYPE_CHECKING:
    from sequitur.producer._outcome import Delivery, TicketResult
    from sequitur.producer._record import Record

TOLD_AFTER_S: Final = 10.0
"""Whatever keeps a source waiting for longer is logged, and then once a minute."""
_TOLD_EACH_S: Final = 60.0
_log: Final = Logger(__name__)


class IntakeTicket(Protocol):
    """Events that were accepted together; await it for their outcomes."""

    @property
    def journaled(self) -> Awaitable[object]:
        """Done once the events, and their position, survive a power cut; raises if they do not."""
        ...

    def __await__(self) -> Generator[Any, Any, TicketResult]:
        """Wait until each event has its outcome."""
        ...


class Intake(Protocol):
    """Takes the events of one source. The daemon makes one for each source it runs."""

    stopping: asyncio.Event
    """Set when the daemon stops: the source returns soon, and leaves nothing half accepted."""

    journals: bool
    """Whether a ticket's `journaled` means the journal; else it waits for the outcomes."""

    async def accept(
        self, records: Sequence[Record], position: bytes | None = None
    ) -> IntakeTicket:
        """Take events, all or none, in this order; wait for room if there is none.

        If the caller is cancelled while it waits for room, no event was accepted.
        """
        ...

    async def accept_each(self, records: Sequence[Record]) -> Sequence[Delivery]:
        """`accept` without a position, for callers that need the outcome of each event."""
        ...

    async def note_position(self, position: bytes) -> None:
        """Journal a position without events, after all that was accepted; return when durable."""
        ...

    def refuse(self, raw: bytes, where: str, reason: str) -> None:
        """Count an event that cannot be sent, and put it into the dead-letter file.

        It is on disk there before any later position is in the journal. What a source reads again
        after a crash between the two is not written again.
        """
        ...

    def keep_copy(self, raw: bytes, where: str, reason: str) -> bool:
        """Count an event that cannot be sent, of which the client is told.

        A copy goes into the dead-letter file only while that is less than half full, so that no
        client can fill it up: the rest is for events that are stored nowhere else.
        """
        ...


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """What went wrong at a source, besides refused events. All counts are since the start."""

    files_finished: int = 0  # files read to their end, and left for the next
    files_lost: int = 0  # files gone or cut before they were read to their end, as far as is known
    # rotated files that were compressed before they were read, or whose number contradicts what was
    # read
    files_passed_over: int = 0
    # written to a rotated file after it was left, or to a folder's after it was done: lost
    left_behind_bytes: int = 0
    files_unreadable: int = 0  # files skipped, since they could not be opened
    hole_bytes: int = 0  # NULs before lines that were passed over
    requests_without_room: int = 0  # HTTP requests answered 503


class Source(Protocol):
    """Reads events from somewhere."""

    name: str
    """Key of its position in the journal."""

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Read until the source ends or `intake.stopping` is set."""
        ...

    def statistics(self) -> SourceStatistics:
        """Return what went wrong so far."""
        ...


class CommonSettings(Section):
    """What the daemon reads, and what the events of any source are made of.

    A source adds its own in a class of its own, whose `title` is the panel that help shows them in.
    """

    title = "Source"

    source: str = "cpu"  # the registry describes it: it knows the others
    format: Literal["json", "text"] = Field(
        default="json",
        description="What a line is: json (it must be one JSON value) or text (any bytes)",
    )
    key: str | None = Field(
        default=None,
        description="Where the key of an event is: json:<path>. Default: events have no key",
    )
    header: Words = Field(
        default=(),
        description="A header taken from the event, as NAME=json:<path>, such as an id of the "
        "file's own for `duplicates`. May be repeated",
    )

    @field_validator("key")
    @classmethod
    def _names_a_field(cls, value: str | None) -> str | None:
        if value is not None:
            parse_key(value)
        return value

    @field_validator("header")
    @classmethod
    def _names_headers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            parse_header(one)
        return value

    @model_validator(mode="after")
    def _text_has_no_fields(self) -> Self:
        if self.format == "text" and self.key is not None:
            raise ValueError(f"key {self.key!r} is a field of JSON: expected format json")
        if self.format == "text" and self.header:
            raise ValueError(f"header {self.header[0]!r} is a field of JSON: expected format json")
        return self


S = TypeVar("S", bound=CommonSettings)


def path_of(settings: CommonSettings) -> Path:
    """Return what is read: absolute, since the position's key must mean one file everywhere."""
    return Path(settings.source.partition(":")[2]).absolute()


def a_path(source: str) -> None:
    """Refuse a setting `source` that names no path."""
    kind, _, path = source.partition(":")
    if not path:
        raise ValueError(f"expected a path, as in {kind}:PATH")
    if "\0" in path:
        raise ValueError("a path cannot hold a null byte")
    if encodable(whole := str(Path(path).absolute())) != whole:
        raise ValueError(
            f"{encodable(whole)} is not UTF-8, which the journal and dead letters need: rename it"
        )


def ready(settings: CommonSettings) -> None:
    """Say that all can be read, or may come."""
    del settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind(Generic[S]):
    """All that is known of one kind of source. Its module has it under the name `SOURCE`."""

    settings: type[S]
    make: Callable[[S, EventParser], Source]  # imports what is large only when it is called
    takes: str = ""  # what stands behind the name and a colon, as help shows it: PATH
    verify: Callable[[str], object] = a_path  # refuses a `source` with ValueError; reads nothing
    check: Callable[[S], None] = ready  # refuses with SourceError what could not be read later
    gives_json: bool = False  # whether its events are JSON whatever comes: not for format text


Pause = Callable[[asyncio.Event, float], Awaitable[None]]
"""Waits for so many seconds, or until the event is set. Tests put their own in its place."""


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Wait for `seconds`, or until `stopping` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()


class WaitLog:
    """Logs what a source waits for that is not just its next event."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since_s: float | None = None
        self._told_s: float | None = None

    def still(self, what: str, *, left_s: float = 0.0, **more: object) -> None:
        """Take note that the source waits, and for how much longer, where that is known."""
        now_s = self._now_s()
        if self._since_s is None:
            self._since_s = now_s
        is_long = now_s - self._since_s + left_s >= TOLD_AFTER_S
        if is_long and (self._told_s is None or now_s - self._told_s >= _TOLD_EACH_S):
            self._told_s = now_s
            _log.warning(what, **more)

    def over(self) -> None:
        self._since_s = None


def check_readable(path: Path) -> None:
    """Refuse a file or folder that may not be read."""
    if not os.access(path, os.R_OK):
        raise SourceError(f"{path} cannot be read: permission denied")


class UnjournaledWindow:
    """Tickets whose events are not durable yet, bounded by bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._tickets: deque[tuple[IntakeTicket, int]] = deque()
        self._held_bytes = 0

    async def add(self, ticket: IntakeTicket, size_bytes: int) -> None:
        """Hold a ticket; wait for the oldest ones while there is too much."""
        self._tickets.append((ticket, size_bytes))
        self._held_bytes += size_bytes
        while self._held_bytes > self._limit_bytes:
            await self._await_oldest()

    async def drain(self) -> None:
        while self._tickets:
            await self._await_oldest()

    async def _await_oldest(self) -> None:
        ticket, size_bytes = self._tickets[0]
        await ticket.journaled
        self._tickets.popleft()
        self._held_bytes -= size_bytes

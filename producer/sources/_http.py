"""`http:HOST:PORT`: `POST /events` takes one JSON event, or NDJSON.

| status | when |
|---|---|
| 202 | the events are in the journal; `accepted` says how many, `refused` which lines were not |
| 201 | with `?wait=persisted` or `Prefer: wait`: they are in the topic; with their offsets |
| 400 | nothing could be accepted: with the line and the reason |
| 404, 405, 413, 415 | no such path or method; a body too large; neither JSON nor NDJSON |
| 502 | with waiting: not each event is surely in the topic; what became of each |
| 503 | no room in time, or the daemon stops; nothing was accepted: try again after `Retry-After` |

Once a client has its 202, the event is not lost and gets into the topic once. A client that gets no
answer and sends again sends another event: HTTP has no identity for it to keep.

There is no authentication here: listen on loopback, or put a proxy in front.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from producer._log import Logger
from producer._outcomes import NotPersisted, Persisted
from producer._record import Record
from producer.sources._errors import (
    DeadLettersFullError,
    NoRoomError,
    SourceError,
    StoppingError,
)
from producer.sources._intake import SourceStatistics
from producer.sources._line_splitter import LineSplitter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import TypeAlias

    from producer._outcomes import Outcome
    from producer.sources._intake import Intake
    from producer.sources._json_lines import EventParser

    _Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log: Final = Logger(__name__)
_JSON: Final = "application/json"
_NDJSON: Final = "application/x-ndjson"
_MAX_LISTED: Final = 1_000
_OK: Final = 202


@dataclasses.dataclass(frozen=True, slots=True)
class HttpLimits:
    """What requests may take.

    Attributes:
        body_bytes: The largest body.
        pending_bytes: Bodies held at the same time; beyond, the answer is 503.
        room_timeout_s: How long a request waits for room in the producer's buffer.
        retry_after_s: When a client told 503 should try again.
    """

    body_bytes: int = 8 << 20
    pending_bytes: int = 64 << 20
    room_timeout_s: float = 5.0
    retry_after_s: int = 1


class HttpSource:
    """Serves one address.

    Args:
        host: Where to listen.
        port: Where to listen; 0 for any free port, see `port`.
        parser: Makes events of bodies.
        limits: What requests may take.
    """

    def __init__(
        self, host: str, port: int, parser: EventParser, limits: HttpLimits | None = None
    ) -> None:
        self.name = f"http:{host}:{port}"
        self.host = host
        self.port = port
        self.listening = asyncio.Event()
        self._parser = parser
        self._limits = limits or HttpLimits()
        self._held_bytes = 0
        self._failed = asyncio.Event()
        self._failure: DeadLettersFullError | None = None
        self._statistics = SourceStatistics()

    def statistics(self) -> SourceStatistics:
        """What went wrong so far."""
        return self._statistics

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Listen until the daemon stops; requests that were begun are answered.

        Raises:
            SourceError: The address cannot be listened on.
            DeadLettersFullError: What a client sent is no event, and could not be kept.
        """
        del position
        runner = web.AppRunner(self.application(intake), access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self.host, self.port)
            try:
                await site.start()
            except OSError as error:
                raise SourceError(f"cannot listen on {self.host}:{self.port}: {error}") from error
            self.port = runner.addresses[0][1]
            self.listening.set()
            _log.info("listening", host=self.host, port=self.port)
            waits = [asyncio.create_task(e.wait()) for e in (intake.stopping, self._failed)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        finally:
            self.listening.clear()
            await runner.cleanup()
        if self._failure is not None:
            raise self._failure

    def application(self, intake: Intake) -> web.Application:
        """The web application, without a server."""

        async def post_events(request: web.Request) -> web.StreamResponse:
            return await self._post(intake, request)

        application = web.Application(
            middlewares=[_answer_in_json], client_max_size=self._limits.body_bytes
        )
        application.router.add_post("/events", post_events)
        return application

    async def _post(self, intake: Intake, request: web.Request) -> web.StreamResponse:
        if request.content_type not in {_JSON, _NDJSON}:
            raise web.HTTPUnsupportedMediaType(text=f"expected {_JSON} or {_NDJSON}")
        if intake.stopping.is_set():
            return self._no_room("the daemon stops")
        limits = self._limits
        reserved = request.content_length
        if reserved is None:
            reserved = limits.body_bytes
        if reserved > limits.body_bytes:
            raise web.HTTPRequestEntityTooLarge(limits.body_bytes, reserved)
        if self._held_bytes + reserved > limits.pending_bytes and self._held_bytes:
            return self._no_room("too many requests at the same time")
        self._held_bytes += reserved
        try:
            return await self._take(intake, request, await request.read())
        except NoRoomError:
            return self._no_room(f"no room within {limits.room_timeout_s:g} s")
        except StoppingError:
            return self._no_room("the daemon stops")
        except DeadLettersFullError as error:
            # The client hears of it, and so does whoever runs the daemon: it ends.
            self._failure = self._failure or error
            self._failed.set()
            return self._no_room("what is no event has no place any more: the daemon ends")
        finally:
            self._held_bytes -= reserved

    async def _take(self, intake: Intake, request: web.Request, body: bytes) -> web.StreamResponse:
        key = request.query.get("key")
        records, refused = self._parse(intake, request, body, None if key is None else key.encode())
        answer: dict[str, Any] = {
            "accepted": len(records),
            "refused": refused[:_MAX_LISTED],
            "refused_count": len(refused),
        }
        if not records:
            if not refused:
                answer["error"] = "the body holds no event"
            return _respond(400, answer)
        if not _waits(request):
            ticket = await self._within_time(intake.accept(records))
            await ticket.journaled
            return _respond(_OK, answer)
        deliveries = await self._within_time(intake.accept_each(records))
        outcomes: Sequence[Outcome] = await asyncio.gather(*deliveries)
        answer["events"] = [_outcome(outcome) for outcome in outcomes]
        persisted = all(isinstance(outcome, Persisted) for outcome in outcomes)
        return _respond(201 if persisted else 502, answer)

    def _parse(
        self, intake: Intake, request: web.Request, body: bytes, key: bytes | None
    ) -> tuple[list[Record], list[dict[str, object]]]:
        place = f"{request.method} /events from {request.remote}"
        limit = self._parser.limit_bytes
        if request.content_type == _JSON:
            parsed = (
                self._parser.parse_value(body, key)
                if len(body) <= limit
                else self._parser.too_long(len(body))
            )
            if isinstance(parsed, Record):
                return [parsed], []
            if not body.strip():
                return [], []
            intake.refuse(body, place, parsed)
            line = body.count(b"\n", 0, _place_of(parsed)) + 1
            return [], [{"line": line, "reason": parsed}]
        splitter = LineSplitter(limit)
        batch = splitter.feed(body if body.endswith(b"\n") else body + b"\n")
        records, refusals = self._parser.parse(batch, key)
        for refusal in refusals:
            intake.refuse(refusal.raw, f"{place} line {refusal.index + 1}", refusal.reason)
        return records, [{"line": each.index + 1, "reason": each.reason} for each in refusals]

    async def _within_time(self, accepting: Awaitable[Any]) -> Any:
        """Wait for room; the intake takes nothing when it is cancelled before there is some."""
        try:
            return await asyncio.wait_for(accepting, self._limits.room_timeout_s)
        except TimeoutError as error:
            raise NoRoomError("the producer's buffer stayed full") from error

    def _no_room(self, reason: str) -> web.Response:
        count = self._statistics.requests_without_room + 1
        self._statistics = dataclasses.replace(self._statistics, requests_without_room=count)
        headers = {"Retry-After": str(self._limits.retry_after_s)}
        return _respond(503, {"error": reason, "accepted": 0}, headers)


@web.middleware
async def _answer_in_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Give the framework's own refusals, such as 404 and 405, as JSON too."""
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        # Its own type and length are those of its text; what else it says, as Allow, is kept.
        headers = {
            name: value
            for name, value in refusal.headers.items()
            if name.lower() not in {"content-type", "content-length"}
        }
        return _respond(refusal.status, {"error": refusal.text or refusal.reason}, headers)


def _respond(
    status: int, answer: Mapping[str, object], headers: Mapping[str, str] | None = None
) -> web.Response:
    body = msgspec.json.encode(answer)
    return web.Response(status=status, body=body, content_type=_JSON, headers=headers)


def _waits(request: web.Request) -> bool:
    wait = request.query.get("wait")
    if wait not in {None, "persisted", "journaled"}:
        raise web.HTTPBadRequest(text=f"wait={wait}: expected persisted or journaled")
    if wait is not None:
        return wait == "persisted"
    preferences = ",".join(request.headers.getall("Prefer", [])).replace(";", ",").split(",")
    return any(each.partition("=")[0].strip().lower() == "wait" for each in preferences)


def _outcome(outcome: Outcome) -> dict[str, object]:
    if isinstance(outcome, Persisted):
        return {"partition": outcome.partition, "offset": outcome.offset}
    fate = "not persisted" if isinstance(outcome, NotPersisted) else "possibly persisted"
    return {"outcome": fate, "reason": outcome.reason}


def _place_of(reason: str) -> int:
    """The byte that a refusal of the JSON reader names; 0 if it names none."""
    _, _, place = reason.rpartition("(byte ")
    digits = place.rstrip(")")
    return int(digits) if digits.isascii() and digits.isdigit() else 0

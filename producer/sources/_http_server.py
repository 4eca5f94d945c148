"""`http:HOST:PORT`: `POST /events` takes one JSON event, or NDJSON.

| status | when |
|---|---|
| 202 | the events are in the journal; `accepted` says how many, `refused` which lines were not |
| 201 | with `?wait=persisted` or `Prefer: wait`, and always without a journal: they are in the topic; with their offsets |
| 400 | nothing could be accepted: with the line and the reason, and how many there are |
| 401 | the token is missing or wrong; nothing was read |
| 404, 405, 413, 415 | no such path or method; a body too large; neither JSON nor NDJSON |
| 408 | the body did not come in time |
| 500 | the journal failed behind the events: the next start may send them, or may not have them |
| 502 | with waiting: not each event is surely in the topic; the outcome of each |
| 503 | no room in time, or the daemon stops; nothing was accepted: try again after `Retry-After` |

Once a client has its 202, the event is not lost and gets into the topic once. A client that gets no
answer and sends again sends another event: HTTP has no identity of requests.

With a token each request has to carry it (`Authorization: Bearer`); without one the source listens
on loopback only, which the settings see to. `application/x-www-form-urlencoded` is taken since
`curl -d` says so; but not from a browser, which lets any page send it to any address.
"""  # noqa: E501 - a table's row is one line

from __future__ import annotations

import asyncio
import dataclasses
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from sequitur.base.log import Logger
from sequitur.errors import JournalError, NoRoomError, ProducerError, SourceError
from sequitur.producer._outcome import NotPersisted, Persisted
from sequitur.producer.sources._http_body import Bodies, BodyEvents, HttpLimits
from sequitur.producer.sources._http_site import SERVER_LOG, LimitedSite, default_limit
from sequitur.producer.sources._source import SourceStatistics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    from sequitur.producer._outcome import Delivery, Outcome
    from sequitur.producer.sources._lines import EventParser
    from sequitur.producer.sources._source import Intake, IntakeTicket

    _Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


_log: Final = Logger(__name__)
_JSON: Final = "application/json"
_NDJSON: Final = "application/x-ndjson"
_FORM: Final = "application/x-www-form-urlencoded"
_TEXT: Final = "text/plain"
_OK: Final = 202
_KEEP_ALIVE_S: Final = 75.0
_LINGER_S: Final = 2.0
"""How long the rest of a body is read that was refused, so that its sender sees the answer."""


class HttpSource:
    """Serves one address."""

    def __init__(
        self,
        host: str,
        port: int,
        parser: EventParser,
        limits: HttpLimits | None = None,
        *,
        token: str | None = None,
    ) -> None:
        self.name = f"http:{host}:{port}"
        self.host = host
        self.port = port
        self.listening = asyncio.Event()
        self._parser = parser
        self._limits = limits or HttpLimits()
        self._bodies = Bodies(self._limits)
        self._token = None if token is None else token.encode()
        self._statistics = SourceStatistics()
        self._site: LimitedSite | None = None

    def statistics(self) -> SourceStatistics:
        return self._statistics

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Listen until the daemon stops; requests that came whole are answered."""
        del position
        runner = web.AppRunner(
            self._application(intake),
            access_log=None,
            logger=SERVER_LOG,
            auto_decompress=False,  # aiohttp's own limit is off
            keepalive_timeout=_KEEP_ALIVE_S,
            lingering_time=_LINGER_S,
            handler_cancellation=True,  # nobody waits for the answer of a client that is gone
        )
        await runner.setup()
        try:
            self._site = site = LimitedSite(
                runner,
                self.host,
                self.port,
                limit=self._limits.connections or default_limit(),
                head_timeout_s=self._limits.body_timeout_s,
            )
            try:
                await site.start()
            except OSError as error:
                raise SourceError(f"cannot listen on {self.host}:{self.port}: {error}") from error
            self.port = runner.addresses[0][1]
            self.listening.set()
            _log.info("listening", host=self.host, port=self.port)
            await intake.stopping.wait()
        finally:
            self.listening.clear()
            self._bodies.stop()
            await runner.cleanup()

    def _application(self, intake: Intake) -> web.Application:
        async def post_events(request: web.Request) -> web.StreamResponse:
            return await self._post(intake, request)

        application = web.Application(middlewares=[self._note_request, _answer_in_json])
        application.router.add_post("/events", post_events)
        return application

    @web.middleware
    async def _note_request(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Handle a request; its client may leave before all of it has come."""
        if self._site is not None:
            self._site.begun(request.transport)
        try:
            return await handler(request)
        except ConnectionError as error:
            _log.debug("a client went away", place=request.remote, reason=str(error))
            return _respond(400, {"error": "the body did not come whole"})
        except asyncio.CancelledError:
            if request.transport is None:
                _log.debug("a client went away", place=request.remote, reason="it did not wait")
            raise

    async def _post(self, intake: Intake, request: web.Request) -> web.StreamResponse:
        self._authorize(request)
        taken = {_JSON, _NDJSON, _FORM} | ({_TEXT} if self._parser.is_text else set())
        if request.content_type not in taken:
            raise web.HTTPUnsupportedMediaType(text=f"expected {_JSON} or {_NDJSON}")
        if request.content_type in {_FORM, _TEXT} and "Origin" in request.headers:
            raise web.HTTPForbidden(text=f"from a browser, expected {_JSON} or {_NDJSON}")
        if intake.stopping.is_set():
            return self._no_room("the daemon stops")
        waits = _waits(request) or not intake.journals
        try:
            answer, accepted = await self._take(intake, request, waits=waits)
        except ProducerError as error:  # whatever it is, nothing was accepted
            return self._no_room(str(error))
        # The events count in the producer's buffer by now: their body is no longer held.
        return await self._answer(answer, accepted)

    def _authorize(self, request: web.Request) -> None:
        if self._token is None:
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        found = token.strip().encode(errors="surrogateescape")
        # In constant time, so that the time does not tell how much of the token is right.
        if not hmac.compare_digest(found, self._token) or scheme.lower() != "bearer":
            raise web.HTTPUnauthorized(
                text="expected Authorization: Bearer and the token",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _take(
        self, intake: Intake, request: web.Request, *, waits: bool
    ) -> tuple[dict[str, Any], IntakeTicket | Sequence[Delivery] | None]:
        """Give the events of a body to the producer; return the answer, and what to wait for."""
        async with self._bodies.read(request) as body:
            events = await self._events(intake, request, body)
            records = events.records
            answer: dict[str, Any] = {
                "accepted": len(records),
                "refused": events.refused,
                "refused_count": events.refused_count,
            }
            if events.refused_count:
                answer["dead_lettered"] = events.kept
            if not records:
                if not events.refused_count:
                    answer["error"] = "the body holds no event"
                return answer, None
            accepting = intake.accept_each(records) if waits else intake.accept(records)
            return answer, await self._within_time(accepting)

    async def _answer(
        self, answer: dict[str, Any], accepted: IntakeTicket | Sequence[Delivery] | None
    ) -> web.Response:
        """Wait for the outcomes that the answer reports."""
        if accepted is None:
            return _respond(400, answer)
        if not isinstance(accepted, Sequence):
            try:
                await accepted.journaled
            except JournalError as error:
                answer["accepted"] = None
                answer["error"] = f"the events may be kept, or not: {error}"
                return _respond(500, answer)
            return _respond(_OK, answer)
        outcomes: Sequence[Outcome] = await asyncio.gather(*accepted)
        answer["events"] = [_outcome(outcome) for outcome in outcomes]
        persisted = all(isinstance(outcome, Persisted) for outcome in outcomes)
        return _respond(201 if persisted else 502, answer)

    async def _events(self, intake: Intake, request: web.Request, body: bytes) -> BodyEvents:
        key = request.query.get("key")
        key_bytes = None if key is None else key.encode()
        events = BodyEvents(intake, f"{request.method} /events from {request.remote}")
        if request.content_type == _JSON or (
            request.content_type == _FORM and self._parser.is_value(body)
        ):
            events.parse_value(self._parser, body, key_bytes)
        else:
            await events.parse_lines(self._parser, body, key_bytes)
        return events

    async def _within_time(self, accepting: Awaitable[Any]) -> Any:
        """Wait for room; the intake takes nothing when it is cancelled before there is some."""
        limit_s = self._limits.room_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await accepting
        except TimeoutError as error:
            raise NoRoomError(f"no room within {limit_s:g} s") from error

    def _no_room(self, reason: str) -> web.Response:
        count = self._statistics.requests_without_room + 1
        self._statistics = dataclasses.replace(self._statistics, requests_without_room=count)
        headers = {"Retry-After": str(self._limits.retry_after_s)}
        return _respond(503, {"error": reason, "accepted": 0}, headers)


@web.middleware
async def _answer_in_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer the framework's own errors, such as 404 and 405, as JSON, too."""
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

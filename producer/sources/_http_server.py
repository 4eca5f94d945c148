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
import contextlib
import dataclasses
import hmac
import logging
import resource
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sequitur.base.log import Logger
from sequitur.errors import (
    JournalError,
    NoRoomError,
    ProducerError,
    SourceError,
    StoppingError,
)
from sequitur.producer._outcome import NotPersisted, Persisted
from sequitur.producer._record import Record
from sequitur.producer.sources._source import LineSplitter, SourceStatistics

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Mapping,
    )
    from typing import TypeAlias

    from sequitur.producer._outcome import Delivery, Outcome
    from sequitur.producer.sources._source import EventParser, Intake, IntakeTicket, LineBatch

    _Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


# How many connections a server has at a time, and what clients do that speak no HTTP.
#
# Each connection takes a file descriptor, and the journal needs some, too. So there is a limit,
# beyond which a client is told 503 at once; and one that has not sent the head of its first
# request in time is closed, so that silent connections do not keep others out.

_MOST: Final = 1_000
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)


class _WithoutMalformed(logging.Filter):
    """Passes over what clients did wrong: they were answered 400, and it is no fault of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


SERVER_LOG: Final = logging.getLogger("sequitur.producer.http_server")
"""Where a web server logs its own errors."""
SERVER_LOG.addFilter(_WithoutMalformed())


def default_limit() -> int:
    """Half of the files that this process may have open, and at most 1,000."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else min(_MOST, max(1, files // 2))


class LimitedSite(web.BaseSite):
    """Listens on an address, as `web.TCPSite`, with limits."""

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, *, limit: int, head_timeout_s: float
    ) -> None:
        super().__init__(runner)
        self._host = host
        self._port = port
        self._limit = limit
        self._head_timeout_s = head_timeout_s
        self._silent: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}

    @property
    def name(self) -> str:
        """The address."""
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Gate(self._let_in), self._host, self._port, backlog=self._backlog
        )

    def begun(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request's head has come on this connection."""
        if transport is not None and (timer := self._silent.pop(transport, None)) is not None:
            timer.cancel()

    def _let_in(self, transport: asyncio.Transport) -> None:
        server = self._runner.server
        if server is None or len(server.connections) >= self._limit:
            transport.write(_FULL)
            transport.close()
            return
        handler = server()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        self._silent[transport] = asyncio.get_running_loop().call_later(
            self._head_timeout_s, self._end, transport
        )

    def _end(self, transport: asyncio.Transport) -> None:
        del self._silent[transport]
        transport.close()


class _Gate(asyncio.Protocol):
    """Hands a connection on before anything has come on it."""

    def __init__(self, let_in: Callable[[asyncio.Transport], None]) -> None:
        self._let_in = let_in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is one more."""
        assert isinstance(transport, asyncio.Transport)
        self._let_in(transport)


# The bodies of requests: read within limits of time and size, counted by their real size.
#
# A slow client takes memory only for what it has sent, and no longer than the time limit; an
# announced length takes none. A compressed body is decompressed a slice at a time, and counts by
# its uncompressed size, so that decompression ends at the limit.

_INFLATED_BYTES: Final = 64 << 10
_ANY_ZLIB_HEADER: Final = 32 + zlib.MAX_WBITS
_COMPRESSED: Final = frozenset({"gzip", "x-gzip", "deflate"})


@dataclasses.dataclass(frozen=True, slots=True)
class HttpLimits:
    """What requests may take."""

    body_bytes: int = 8 << 20  # the largest body, uncompressed
    pending_bytes: int = 64 << 20  # bodies held at the same time; beyond, the answer is 503
    room_timeout_s: float = 5.0  # how long a request waits for room in the producer's buffer
    # how long a body may take to come; beyond, the answer is 408. So long may the head of a
    # connection's first request take, too
    body_timeout_s: float = 30.0
    # so many at a time; 0 for half of the files that the process may have open, and at most 1,000.
    # Beyond, the answer is 503
    connections: int = 0
    retry_after_s: int = 1  # when a client told 503 should try again


class Bodies:
    """Reads the bodies of all requests of one server."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._held_bytes = 0
        self._reading: set[asyncio.Timeout] = set()
        self._stopped = False

    def stop(self) -> None:
        """Stop reading: requests whose body is not complete by now are answered 503."""
        self._stopped = True
        now_s = asyncio.get_running_loop().time()
        for timeout in self._reading:
            timeout.reschedule(now_s)

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """The body of a request, uncompressed; it counts as held until the context is left."""
        length = request.content_length
        if length is not None and length > self._limits.body_bytes:
            raise web.HTTPRequestEntityTooLarge(self._limits.body_bytes, length)
        held = 0
        try:
            parts: list[bytes] = []
            async with contextlib.aclosing(self._slices(request)) as slices:
                async for part in slices:
                    # One body is always let in, whatever its size.
                    others = self._held_bytes - held
                    if others and self._held_bytes + len(part) > self._limits.pending_bytes:
                        raise NoRoomError("too many requests at the same time")
                    held += len(part)
                    self._held_bytes += len(part)
                    if held > self._limits.body_bytes:
                        raise web.HTTPRequestEntityTooLarge(self._limits.body_bytes, held)
                    parts.append(part)
            yield b"".join(parts)
        finally:
            self._held_bytes -= held

    async def _slices(self, request: web.Request) -> AsyncGenerator[bytes, None]:
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in {"identity", ""} | _COMPRESSED:
            raise web.HTTPUnsupportedMediaType(
                text=f"Content-Encoding {encoding!a}: expected gzip or deflate"
            )
        inflater = Inflater() if encoding in _COMPRESSED else None
        async with contextlib.aclosing(self._chunks(request)) as chunks:
            async for chunk in chunks:
                if inflater is None:
                    yield chunk
                    continue
                try:
                    for part in inflater.feed(chunk):
                        yield part
                        await asyncio.sleep(0)  # decompressing takes long enough for others to wait
                except zlib.error as error:
                    raise web.HTTPBadRequest(text=f"the body is not {encoding}: {error}") from error
        if inflater is not None and not inflater.is_whole:
            raise web.HTTPBadRequest(text=f"the {encoding} body ends before its end")

    async def _chunks(self, request: web.Request) -> AsyncGenerator[bytes, None]:
        """Yield the client's data as it arrives."""
        if self._stopped:
            raise StoppingError("the daemon stops")
        deadline_s = asyncio.get_running_loop().time() + self._limits.body_timeout_s
        while True:
            # Not around the loop: what is done with a chunk is not the client's time.
            timeout = asyncio.timeout_at(deadline_s)
            try:
                async with timeout:
                    self._reading.add(timeout)
                    chunk = await request.content.readany()
            except TimeoutError as error:
                if self._stopped:
                    raise StoppingError("the daemon stops") from error
                raise web.HTTPRequestTimeout(
                    text=f"the body did not come within {self._limits.body_timeout_s:g} s"
                ) from error
            finally:
                self._reading.discard(timeout)
            if not chunk:
                return
            yield chunk


class Inflater:
    """Opens gzip and deflate, also several gzip files one behind the other; no I/O."""

    def __init__(self) -> None:
        self._opener = zlib.decompressobj(_ANY_ZLIB_HEADER)
        self._begun = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing at the end."""
        return not self._begun

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what is in `data`, at most 64 KiB at a time."""
        while data:
            self._begun = True
            part = self._opener.decompress(data, _INFLATED_BYTES)
            if part:
                yield part
            data = self._opener.unconsumed_tail
            if self._opener.eof:
                data = self._opener.unused_data
                self._opener = zlib.decompressobj(_ANY_ZLIB_HEADER)
                self._begun = False


# Events from the bodies of requests, and how invalid ones are reported.
#
# A body is parsed a slice at a time, so that a large one does not delay other requests. The client
# is told of invalid events, and still has them; so only the first of a request are written to the
# dead-letter file, which could otherwise grow by a hundred times what arrived.

MAX_LISTED: Final = 1_000
"""How many refused lines an answer names."""
MAX_KEPT: Final = 20
MAX_KEPT_BYTES: Final = 64 << 10
"""How much of one request is written to the dead-letter file."""

_PARSED_BYTES: Final = 16 << 10


class RefusedLine(msgspec.Struct, frozen=True):
    """An invalid event, as an answer names it."""

    line: int
    reason: str


class BodyEvents:
    """The events of one body."""

    def __init__(self, intake: Intake, place: str) -> None:
        self.records: list[Record] = []
        self.refused: list[RefusedLine] = []
        self.refused_count = 0
        self.kept = 0
        self._intake = intake
        self._place = place
        self._kept_bytes = 0

    async def parse_lines(self, parser: EventParser, body: bytes, key: bytes | None) -> None:
        """Parse a body whose lines are events."""
        splitter = LineSplitter(parser.limit_bytes, holes=False)
        for start in range(0, len(body), _PARSED_BYTES):
            self._take(parser, splitter.feed(body[start : start + _PARSED_BYTES]), key)
            await asyncio.sleep(0)
        self._take(parser, splitter.finish(), key)
        self._close()

    def parse_value(self, parser: EventParser, body: bytes, key: bytes | None) -> None:
        """Parse a body that is one event."""
        fits = len(body) <= parser.limit_bytes
        parsed = parser.parse_value(body, key) if fits else parser.too_long(len(body))
        if isinstance(parsed, Record):
            self.records.append(parsed)
        elif body.strip():
            line = body.count(b"\n", 0, _place_of(parsed)) + 1
            self._refuse(body, self._place, line, parsed)
        self._close()

    def _take(self, parser: EventParser, batch: LineBatch, key: bytes | None) -> None:
        records, refusals = parser.parse(batch, key)
        self.records += records
        for refusal in refusals:
            line = batch.first_line + refusal.index
            self._refuse(refusal.raw, f"{self._place} line {line}", line, refusal.reason)

    def _refuse(self, raw: bytes, where: str, line: int, reason: str) -> None:
        self.refused_count += 1
        if len(self.refused) < MAX_LISTED:
            self.refused.append(RefusedLine(line, reason))
        fits = self.kept < MAX_KEPT and self._kept_bytes + len(raw) <= MAX_KEPT_BYTES
        # Of one that is larger by itself the file keeps the beginning.
        if (fits or not self.kept) and self._intake.keep_copy(raw, where, reason):
            self.kept += 1
            self._kept_bytes += len(raw)

    def _close(self) -> None:
        left_out = self.refused_count - self.kept
        if left_out and self.kept:
            self._intake.keep_copy(
                b"", self._place, f"{left_out} more invalid events of this request: not stored"
            )


def _place_of(reason: str) -> int:
    """Return the byte that a refusal of the JSON reader names; 0 if it names none."""
    _, _, place = reason.rpartition("(byte ")
    digits = place.rstrip(")")
    return int(digits) if digits.isascii() and digits.isdigit() else 0


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
        """Return what went wrong so far."""
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
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        found = given.strip().encode(errors="surrogateescape")
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
            return await asyncio.wait_for(accepting, limit_s)
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

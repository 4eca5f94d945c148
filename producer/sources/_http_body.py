"""The bodies of requests: read within limits of time and size, and the events in them.

A slow client takes memory only for what it has sent, and no longer than the time limit. An
announced length takes none. A compressed body is decompressed a slice at a time, and counts by its
uncompressed size, so that decompression ends at the limit.

A body is parsed a slice at a time, so that a large one does not delay other requests. The client is
told of invalid events, and still has them. So only the first of a request are written to the
dead-letter file, which could otherwise grow by a hundred times what arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import zlib
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from sequitur.errors import NoRoomError, StoppingError
from sequitur.producer._record import Record
from sequitur.producer.sources._lines import LineSplitter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from sequitur.producer.sources._lines import EventParser, LineBatch
    from sequitur.producer.sources._source import Intake

_INFLATED_BYTES: Final = 64 << 10
_ANY_ZLIB_HEADER: Final = 32 + zlib.MAX_WBITS
_COMPRESSED: Final = frozenset({"gzip", "x-gzip", "deflate"})
MAX_LISTED: Final = 1_000
"""How many refused lines an answer names."""
MAX_KEPT: Final = 20
MAX_KEPT_BYTES: Final = 64 << 10
"""How much of one request is written to the dead-letter file."""
_PARSED_BYTES: Final = 16 << 10


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
        splitter = LineSplitter(parser.limit_bytes, holes=False)
        for start in range(0, len(body), _PARSED_BYTES):
            self._take(parser, splitter.feed(body[start : start + _PARSED_BYTES]), key)
            await asyncio.sleep(0)
        self._take(parser, splitter.finish(), key)
        self._close()

    def parse_value(self, parser: EventParser, body: bytes, key: bytes | None) -> None:
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


class RefusedLine(msgspec.Struct, frozen=True):
    """An invalid event, as an answer names it."""

    line: int
    reason: str


def _place_of(reason: str) -> int:
    """Return the byte that a refusal of the JSON reader names; 0 if it names none."""
    _, _, place = reason.rpartition("(byte ")
    digits = place.rstrip(")")
    return int(digits) if digits.isascii() and digits.isdigit() else 0

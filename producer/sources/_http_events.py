"""Events from the bodies of requests, and how invalid ones are reported.

A body is parsed a slice at a time, so that a large one does not delay other requests. The client is
told of invalid events, and still has them; so only the first of a request are written to the
dead-letter file, which could otherwise grow by a hundred times what arrived.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from sequitur.producer._record import Record
from sequitur.producer.sources._line_splitter import LineSplitter

if TYPE_CHECKING:
    from sequitur.producer.sources._intake import Intake
    from sequitur.producer.sources._json_lines import EventParser
    from sequitur.producer.sources._line_splitter import LineBatch

MAX_LISTED: Final = 1_000
"""How many refused lines an answer names."""
MAX_KEPT: Final = 20
MAX_KEPT_BYTES: Final = 64 << 10
"""How much of one request is written to the dead-letter file."""

_SLICE_BYTES: Final = 16 << 10


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
        splitter = LineSplitter(parser.limit_bytes)
        for start in range(0, len(body), _SLICE_BYTES):
            self._take(parser, splitter.feed(body[start : start + _SLICE_BYTES]), key)
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

"""`replay:PATH`: a recorded file, sent with the pauses between its events.

The file holds JSON lines with an event time each. It must not change between a stop and the next
start: a position in a replay is a place in the order of sending, which only the same recording with
the same seed has.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from array import array
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec
from pydantic import Field, field_validator

from sequitur.base.json_field import JsonField, documents_of, parse_key, which_fields
from sequitur.base.log import Logger
from sequitur.base.time_format import FORMAT_BEGINS, MILLISECONDS, TimeFormat, split_format
from sequitur.base.units import Duration, milliseconds
from sequitur.errors import PositionError, SourceError
from sequitur.producer.sources._head import require_uncompressed
from sequitur.producer.sources._lines import LOOKED_AT, LineBatch, LineSplitter, tell_holes
from sequitur.producer.sources._replay_schedule import (
    NO_TIME,
    Disorder,
    ReplaySchedule,
    astray,
    replay_schedule,
)
from sequitur.producer.sources._source import (
    CommonSettings,
    SourceKind,
    SourceStatistics,
    WaitLog,
    check_readable,
    path_of,
    pause,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.producer._record import Record
    from sequitur.producer.sources._lines import EventParser
    from sequitur.producer.sources._source import Intake, Pause

_IN_ORDER: Final = Disorder()
_log: Final = Logger(__name__)
_READ_BYTES: Final = 1 << 20
_LEAST_SPEED: Final = 1e-6
"""At this a second takes eleven days."""
_MAX_BATCH_EVENTS: Final = 1_000
_MAX_BATCH_BYTES: Final = 256 << 10


class ReplaySettings(CommonSettings):
    """Settings of `replay`."""

    title = "Replay"

    speed: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="Speed, as a multiple of the recording's, from 0.000001. 0: without pauses "
        "(replay)",
    )
    replay_event_time: str = Field(
        default="json:occurred_at",
        description="Where the time of a recorded event is: json:PATH, json:PATH as s (replay)",
    )
    disorder: Duration = Field(
        default=timedelta(0),
        description="Delay each event by a random time up to this (replay)",
    )
    late_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of events that are delayed by late_by as well (replay)",
    )
    late_by: Duration = Field(
        default=timedelta(0), description="Further delay of that share of events (replay)"
    )
    seed: int = Field(default=0, ge=0, description="Seed of the random delays (replay)")

    @field_validator("speed")
    @classmethod
    def _is_no_standstill(cls, value: float) -> float:
        if 0 < value < _LEAST_SPEED:
            raise ValueError(f"expected at least {_LEAST_SPEED:f}, or 0 for no pauses")
        return value

    @field_validator("replay_event_time")
    @classmethod
    def _names_the_time(cls, value: str) -> str:
        time_of(value)
        return value


def time_of(text: str) -> tuple[JsonField, TimeFormat]:
    """Read the setting `replay_event_time`: `json:at`, `json:at as s`."""
    where, written = split_format(text)
    return parse_key(where), written


class ReplayPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a recording was replayed."""

    sent: int  # how many events of the plan
    plan: str  # digest of the recording, the times found in it, and how its order is disturbed


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Where the lines of a recorded file stand, and the order to send them in."""

    offsets: array[int]
    lengths: array[int]  # their bytes, without the newline
    schedule: ReplaySchedule
    digest: str  # of content, times and disorder
    astray: int  # how many have a time that is not believed
    fields: str  # what the first events have, where none has a time; else empty


class ReplaySource:
    """Replays one recording, and ends."""

    def __init__(
        self,
        path: Path,
        parser: EventParser,
        *,
        event_time: JsonField,
        written: TimeFormat = MILLISECONDS,
        speed: float = 1.0,
        disorder: Disorder = _IN_ORDER,
        pause: Pause = pause,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"replay:{path}"
        self._path = path
        self._parser = parser
        self._event_time = event_time
        self._written = written
        self._speed = speed
        self._disorder = disorder
        self._pause = pause
        self._now_s = now_s
        self._hole_bytes = 0
        self._waits = WaitLog(now_s)

    def statistics(self) -> SourceStatistics:
        """Return what went wrong so far: nothing does here but lines."""
        return SourceStatistics(hole_bytes=self._hole_bytes)

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Send what is left of the recording, or until the daemon stops."""
        try:
            recording = await asyncio.to_thread(self._index)
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error}") from error
        sent = 0 if position is None else self._resume(position, recording)
        _log.info("replay", path=str(self._path), events=len(recording.offsets), sent=sent)
        if sent == len(recording.offsets):
            return
        if recording.fields:
            raise SourceError(
                f"no event of {self._path} has a time, as json:{self._event_time.path}"
                f"{FORMAT_BEGINS}{self._written}, {recording.fields}"
            )
        if recording.astray:
            _log.warning(
                "events have times far from all others: no pause is made for these",
                path=str(self._path),
                events=recording.astray,
            )
        with self._path.open("rb") as file:
            await self._send(intake, recording, file.fileno(), sent)

    async def _send(self, intake: Intake, recording: Recording, file: int, sent: int) -> None:
        due_ms = recording.schedule.due_ms
        begin_s, begin_ms = self._now_s(), int(due_ms[sent])
        while sent < len(due_ms) and not intake.stopping.is_set():
            if self._speed:
                passed_ms = begin_ms + (self._now_s() - begin_s) * 1000 * self._speed
                due = int(due_ms.searchsorted(passed_ms, side="right"))
                if due <= sent:
                    wait_s = max((int(due_ms[sent]) - passed_ms) / self._speed, 1) / 1000
                    self._tell(recording, sent, wait_s)
                    await self._pause(intake.stopping, wait_s)
                    continue
            else:
                due = len(due_ms)
            records, end = self._batch(intake, recording, file, sent, due)
            position = msgspec.json.encode(ReplayPosition(sent=end, plan=recording.digest))
            if records:
                await intake.accept(records, position)
            else:
                await intake.note_position(position)
            sent = end

    def _tell(self, recording: Recording, sent: int, wait_s: float) -> None:
        self._waits.over()
        self._waits.still(
            "waiting: the next event of the recording is not due yet",
            left_s=wait_s,
            path=str(self._path),
            line=int(recording.schedule.order[sent]) + 1,
            due_in_s=round(wait_s),
            speed=self._speed,
        )

    def _batch(
        self, intake: Intake, recording: Recording, file: int, first: int, due: int
    ) -> tuple[list[Record], int]:
        """Some of the events that are due, and where the next batch begins."""
        records: list[Record] = []
        size = 0
        place = first
        end = min(due, first + _MAX_BATCH_EVENTS)
        while place < end and size < _MAX_BATCH_BYTES:
            index = int(recording.schedule.order[place])
            offset, length = recording.offsets[index], recording.lengths[index]
            size += length
            line = os.pread(file, min(length, self._parser.limit_bytes), offset)
            if len(line) < min(length, self._parser.limit_bytes):
                raise SourceError(
                    f"{self._path} was cut while it was replayed: line {index + 1} at byte "
                    f"{offset} is gone. Replay a file that nobody writes to"
                )
            overlong = {0: length} if length > len(line) else {}
            batch = LineBatch([line], index + 1, offset, offset + length, overlong)
            parsed, refusals = self._parser.parse(batch)
            reasons = [refusal.reason for refusal in refusals]
            if parsed and self._time_ms(line) == NO_TIME:
                parsed, reasons = [], [f"no event time in {self._event_time.path}"]
            for reason in reasons:
                intake.refuse(line, f"{self._path} line {index + 1} byte {offset}", reason)
            records += parsed
            place += 1
        return records, place

    def _resume(self, encoded: bytes, recording: Recording) -> int:
        try:
            position = msgspec.json.decode(encoded, type=ReplayPosition)
        except msgspec.DecodeError as error:
            raise PositionError(
                f"{encoded[:200]!r} is not a position in a replay: {error}"
            ) from error
        if position.plan != recording.digest:
            raise PositionError(
                f"{self._path}: {position.sent} events of a replay are sent already, and since "
                "then the recording, event_time, seed, disorder, late_share or late_by has changed"
            )
        return position.sent

    def _index(self) -> Recording:
        """Read the whole recording once, and plan its replay."""
        offsets, lengths, times = array("q"), array("q"), array("q")
        first: list[bytes] = []
        reading = WaitLog()
        splitter = LineSplitter(self._parser.limit_bytes)
        digest = hashlib.blake2b(digest_size=8)
        with self._path.open("rb") as file:
            ended = False
            while not ended:
                data = file.read(_READ_BYTES)
                digest.update(data)
                ended = not data
                reading.still("reading the recording", path=str(self._path), at_byte=file.tell())
                batch = splitter.finish() if ended else splitter.feed(data)
                offset = batch.first_offset
                if batch.holes:
                    self._hole_bytes += tell_holes(batch, str(self._path))
                for index, line in enumerate(batch.lines):
                    length = batch.overlong.get(index, len(line))
                    if len(first) < LOOKED_AT and line.strip():
                        first.append(line)
                    offset += batch.holes.get(index, 0)
                    offsets.append(offset)
                    lengths.append(length)
                    times.append(NO_TIME if index in batch.overlong else self._time_ms(line))
                    offset += length + 1
        digest.update(repr(self._disorder).encode())
        digest.update(times.tobytes())
        strays = astray(times)
        each = zip(times, strays, strict=True)
        believed = array("q", (NO_TIME if is_stray else time_ms for time_ms, is_stray in each))
        has_no_time = bool(first) and all(one == NO_TIME for one in times)
        fields = which_fields(documents_of(first)) if has_no_time else ""
        return Recording(
            offsets,
            lengths,
            replay_schedule(believed, self._disorder),
            digest.hexdigest(),
            astray=int(strays.sum()),
            fields=fields,
        )

    def _time_ms(self, line: bytes) -> int:
        return recorded_time_ms(line, self._event_time, self._written)


def recorded_time_ms(line: bytes, event_time: JsonField, written: TimeFormat) -> int:
    """Return the time of a recorded event, epoch ms; `NO_TIME` without one that can be read."""
    try:
        found = event_time.text_of(line)
        time_ms = None if found is None else written.read(found.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_TIME
    return NO_TIME if time_ms is None else time_ms


def _check(settings: ReplaySettings) -> None:
    if not (path := path_of(settings)).is_file():
        raise SourceError(f"{path} is not there, or no file")
    check_readable(path)
    require_uncompressed(path)


def _make(settings: ReplaySettings, parser: EventParser) -> ReplaySource:
    disorder = Disorder(
        up_to_ms=milliseconds(settings.disorder),
        late_share=settings.late_share,
        late_by_ms=milliseconds(settings.late_by),
        seed=settings.seed,
    )
    field, written = time_of(settings.replay_event_time)
    return ReplaySource(
        path_of(settings),
        parser,
        event_time=field,
        written=written,
        speed=settings.speed,
        disorder=disorder,
    )


SOURCE: Final = SourceKind(
    settings=ReplaySettings, make=_make, check=_check, takes="PATH", gives_json=True
)

"""When each event of a recording is sent: pure, and the same for the same seed, everywhere."""

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
from sequitur.base.settings import Duration, milliseconds
from sequitur.base.time_format import FORMAT_BEGINS, MILLISECONDS, TimeFormat, split_format
from sequitur.errors import PositionError, SourceError
from sequitur.producer.sources._line_file import require_uncompressed
from sequitur.producer.sources._source import (
    LOOKED_AT,
    CommonSettings,
    LineBatch,
    LineSplitter,
    SourceKind,
    SourceStatistics,
    WaitLog,
    check_readable,
    path_of,
    pause,
    tell_holes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    import numpy as np

    from sequitur.producer._record import Record
    from sequitur.producer.sources._source import EventParser, Intake, Pause

    Int64s: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
    Bools: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]


NO_TIME: Final = -(2**63)
"""Stands for an event without a time."""
_LIKELY_MS: Final = (946_684_800_000, 4_102_444_800_000)
"""The years 2000 to 2099."""
_LIKELY_SHARE: Final = 0.1
_NEVER_MS: Final = 1 << 61
"""No clock gets there; and the time between two events that are within it has 63 bits."""
_FAR_MS: Final = 365 * 24 * 3_600_000
_FAR_SPREADS: Final = 10
"""A time that is further than a year, and than so many times the usual distance, from the middle of
a recording is not believed."""


@dataclass(frozen=True, slots=True)
class Disorder:
    """How the order of a recording is disturbed. All times are in the recording's time."""

    up_to_ms: int = 0  # each event is delayed by a random time below this
    late_share: float = 0.0  # the share of events, 0 to 1, that are delayed by `late_by_ms` on top
    late_by_ms: int = 0
    seed: int = 0  # chooses the delays


@dataclass(frozen=True, slots=True, eq=False)
class ReplaySchedule:
    """The order in which a recording's events are sent."""

    order: Int64s  # their places in the recording, in the order of sending
    # when each is due, in the recording's time since its first event; in that order, never falling
    due_ms: Int64s


def replay_schedule(times_ms: Sequence[int] | array[int], disorder: Disorder) -> ReplaySchedule:
    """Plan a replay.

    An event is due when the recording had first reached its time: so a recording that is itself
    out of order keeps its order, unless `disorder` changes it. One with `NO_TIME` is due with the
    event before it, and is not delayed.

    The random numbers are the raw stream of PCG64, which numpy promises not to change.
    """
    import numpy as np  # noqa: PLC0415 - large, and only a replay needs it

    times = np.asarray(times_ms, dtype=np.int64)
    if not len(times):
        return ReplaySchedule(times, times)
    has_time = times != NO_TIME
    reached = np.maximum.accumulate(times)
    first = times[np.argmax(has_time)] if has_time.any() else np.int64(0)
    due = np.where(reached == NO_TIME, 0, reached - np.where(reached == NO_TIME, 0, first))
    chances = _chances(disorder.seed, 2 * len(times)).reshape(-1, 2)
    delay = (chances[:, 0] * disorder.up_to_ms).astype(np.int64)
    delay += np.where(chances[:, 1] < disorder.late_share, disorder.late_by_ms, 0)
    due = due + np.where(has_time, delay, 0)
    order = np.argsort(due, kind="stable")
    return ReplaySchedule(order, due[order])


def astray(times_ms: Sequence[int] | array[int]) -> Bools:
    """Tell which events have a time that cannot be one of this recording.

    Devices without a clock send the year 1 or 1970, others 9999: the pause before it, or behind it,
    would never end. The middle of a recording is the median of its times between 2000 and 2100, and
    of all times where few are among these: of a simulation that begins at 0.
    """
    import numpy as np  # noqa: PLC0415 - as above

    times = np.asarray(times_ms, dtype=np.int64)
    known = times[times != NO_TIME].astype(np.float64)
    if not len(known):
        return np.zeros(len(times), np.bool_)
    likely = known[(known >= _LIKELY_MS[0]) & (known < _LIKELY_MS[1])]
    among = likely if len(likely) >= _LIKELY_SHARE * len(known) else known
    middle = np.median(among)
    far = max(_FAR_MS, _FAR_SPREADS * np.median(np.abs(among - middle)))
    exact = times.astype(np.float64)
    is_far = (np.abs(exact - middle) > far) | (np.abs(exact) > _NEVER_MS)
    found: Bools = (times != NO_TIME) & is_far
    return found


def _chances(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Random numbers from 0 to below 1."""
    import numpy as np  # noqa: PLC0415

    raw = np.random.PCG64(seed).random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


# `replay:PATH`: a recorded file, sent with the pauses between its events.
#
# The file holds JSON lines with an event time each. It must not change between a stop and the next
# start: a position in a replay is a place in the order of sending, which only the same recording
# with the same seed has.


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
        disorder: Disorder = Disorder(),
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

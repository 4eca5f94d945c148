"""`stdin`: JSON lines from a pipe, a terminal or a redirected file.

A pipe cannot be read twice, so there is no position. What was read is journaled, and no more than a
window of it is not yet; so kill -9 loses at most that window and what the pipe held, and a planned
stop loses nothing that was read: what cannot be accepted any more goes to the dead-letter file. Use
`file:` where nothing may be lost.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from typing import TYPE_CHECKING, Final

from sequitur.errors import SourceError, StoppingError
from sequitur.producer.sources._head import HEAD_BYTES, why_no_lines
from sequitur.producer.sources._lines import LineBatch, LineSplitter, tell_holes
from sequitur.producer.sources._source import (
    CommonSettings,
    SourceKind,
    SourceStatistics,
    UnjournaledWindow,
)

if TYPE_CHECKING:
    from sequitur.producer.sources._lines import EventParser
    from sequitur.producer.sources._source import Intake

_READ_BYTES: Final = 64 << 10


class StdinSource:
    """Reads standard input until it ends."""

    name = "stdin"

    def __init__(
        self, parser: EventParser, *, descriptor: int = 0, window_bytes: int = 4 << 20
    ) -> None:
        self._parser = parser
        self._descriptor = descriptor
        self._window = UnjournaledWindow(window_bytes)
        self._hole_bytes = 0

    def statistics(self) -> SourceStatistics:
        """Return what went wrong so far: nothing does here but lines."""
        return SourceStatistics(hole_bytes=self._hole_bytes)

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Read until standard input ends, or the daemon stops."""
        del position
        _require_readable(self._descriptor)
        splitter = LineSplitter(self._parser.limit_bytes)
        reader = _Reader(self._descriptor, intake.stopping)
        head = b""
        try:
            while (data := await reader.read()) is not None:
                if len(head) < HEAD_BYTES:
                    head = (head + data).lstrip(b"\0")[:HEAD_BYTES]
                    if problem := why_no_lines("", head, is_text=True):
                        raise SourceError(f"standard input has no lines: {problem}")
                await self._take(intake, splitter.feed(data) if data else splitter.finish())
                if not data:
                    break
            else:
                self._give_up(intake, splitter.finish(), "the daemon stopped inside the line")
        finally:
            reader.close()
        await self._window.drain()

    async def _take(self, intake: Intake, batch: LineBatch) -> None:
        if batch.holes:
            self._hole_bytes += tell_holes(batch, self.name)
        records, refusals = self._parser.parse(batch)
        for refusal in refusals:
            intake.refuse(refusal.raw, _where(batch, refusal.index), refusal.reason)
        if not records:
            return
        try:
            ticket = await intake.accept(records)
        except StoppingError:
            refused = {refusal.index for refusal in refusals}
            self._give_up(intake, batch, "the daemon stopped before there was room", refused)
            raise
        await self._window.add(ticket, sum(len(record.value or b"") for record in records))

    def _give_up(
        self, intake: Intake, batch: LineBatch, reason: str, refused: set[int] | None = None
    ) -> None:
        for index, line in enumerate(batch.lines):
            if index not in (refused or ()) and line.strip():
                intake.refuse(line, _where(batch, index), reason)


def _where(batch: LineBatch, index: int) -> str:
    return f"stdin line {batch.first_line + index} byte {batch.offset_of(index)}"


class _Reader:
    """Reads a descriptor without stopping the loop, and without a thread that could not end.

    A thread inside `read` of a silent pipe cannot be woken and would hold up the end of the
    process. So what the loop can wait for is read when it is readable; a regular file, which it
    cannot wait for, never blocks for long, and is read in a thread.
    """

    def __init__(self, descriptor: int, stopping: asyncio.Event) -> None:
        self._descriptor = descriptor
        self._stopping = stopping
        self._stop = asyncio.ensure_future(stopping.wait())
        self._can_wait = not stat.S_ISREG(os.fstat(descriptor).st_mode)

    async def read(self) -> bytes | None:
        """Return the next bytes, none at the end; None when the daemon stops."""
        if self._can_wait and not await self._is_readable():
            return None
        if self._stopping.is_set():
            return None
        if self._can_wait:
            return os.read(self._descriptor, _READ_BYTES)
        return await asyncio.to_thread(os.read, self._descriptor, _READ_BYTES)

    async def _is_readable(self) -> bool:
        """Wait until there is something to read; False when the daemon stops before."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            loop.add_reader(self._descriptor, readable.set)
        except PermissionError:  # such as /dev/null: always readable
            self._can_wait = False
            return True
        waiting = asyncio.ensure_future(readable.wait())
        try:
            await asyncio.wait((waiting, self._stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self._descriptor)
            waiting.cancel()
        return readable.is_set()

    def close(self) -> None:
        """Wait for nothing any more. The descriptor stays open: it is not ours."""
        self._stop.cancel()


def _require_readable(descriptor: int) -> None:
    """Refuse standard input that is closed: then it is reserved, and open only for writing."""
    try:
        can_read = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
    except OSError:
        can_read = False
    if not can_read:
        raise SourceError(
            "standard input cannot be read, it is closed or open only for writing: give the "
            "daemon a pipe or a file, as in `produce-events ... < events.jsonl`"
        )


def _check(settings: CommonSettings) -> None:
    del settings
    _require_readable(0)


def _make(settings: CommonSettings, parser: EventParser) -> StdinSource:
    del settings
    return StdinSource(parser)


SOURCE: Final = SourceKind(settings=CommonSettings, make=_make, check=_check)

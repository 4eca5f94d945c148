"""The daemon's dead-letter file, as whoever has to mend its entries reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class DeadLetterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry.

    Attributes:
        source: Name of the source, as in the journal.
        where: Where it stood: file, line and byte; or request and line.
        reason: Why it could not be sent.
        raw: Its bytes; of what is no event the first 64 KiB. None is a tombstone.
        raw_length: How many it had, as far as known.
        key: Its key, if it had one by then.
        headers: Its headers, likewise.
        timestamp_ms: Its record's timestamp, likewise; milliseconds since 1970.
        at_ms: When it was refused, milliseconds since 1970.
    """

    source: str
    where: str
    reason: str
    raw: bytes | None
    raw_length: int
    at_ms: int
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


def read_dead_letters(path: Path) -> Iterator[DeadLetterEntry]:
    """The entries of a dead-letter file, oldest first; one that a crash cut is passed over."""
    decoder = msgspec.json.Decoder(DeadLetterEntry)
    with path.open("rb") as lines:
        for line in lines:
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError:
                continue

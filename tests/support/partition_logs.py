"""Logs of partitions as brokers send them, and which of their records a consumer sees."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, get_args

import google_crc32c
from hypothesis import strategies as st

from sequitur.kafka.record_batch import Stamp, new_builder, seal, stamped
from sequitur.kafka.record_format import Compression

if TYPE_CHECKING:
    from collections.abc import Iterable

ABORT: Final = b"\x00\x00\x00\x00"
COMMIT: Final = b"\x00\x00\x00\x01"
CONTROL: Final = 0x30
TRANSACTIONAL: Final = 0x10
BY_BROKER: Final = 0x08
_ATTRIBUTES_AT: Final = 22
PACKED_BY = st.sampled_from(get_args(Compression))


def checked(raw: bytearray) -> bytes:
    """Return a batch that was changed, with a checksum that fits."""
    raw[17:21] = google_crc32c.value(bytes(raw[21:])).to_bytes(4, "big")
    return bytes(raw)


def batch(
    records: Iterable[Any],
    *,
    base: int = 0,
    codec: Compression = "none",
    attributes: int = 0,
    pid: int = -1,
) -> bytes:
    """Return records (time, key, value, headers) as a batch; None is one that is compacted away."""
    builder = new_builder(1 << 24)
    for number, record in enumerate(records):
        if record is not None:
            ms, key, value, headers = record
            assert builder.append(number, ms, key, value, list(headers)) is not None
    raw = bytearray(stamped(seal(builder, codec), Stamp(pid, 0, 0)))
    raw[:8] = struct.pack(">q", base)
    raw[_ATTRIBUTES_AT] |= attributes
    return checked(raw)


def marker(base: int, pid: int, kind: bytes) -> bytes:
    """Return the marker of a transaction."""
    return batch([(1, kind, b"", ())], base=base, attributes=CONTROL, pid=pid)


@dataclass
class PartitionLog:
    """A log, made batch by batch."""

    batches: list[bytes] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)
    rows: dict[int, Any] = field(default_factory=dict)  # what a consumer sees, by offset
    end: int = 0

    def add(self, records: Iterable[Any], codec: Compression, kind: str) -> None:
        """Append a batch of one of `KINDS`; behind one of a transaction stands its marker."""
        records, base, pid = list(records), self.end, len(self.batches)
        attributes = {"plain": 0, "by broker": BY_BROKER}.get(kind, TRANSACTIONAL)
        self.batches.append(batch(records, base=base, codec=codec, attributes=attributes, pid=pid))
        self.end += len(records)
        there = {base + at: one for at, one in enumerate(records) if one is not None}
        if kind == "by broker":
            newest_ms = max(one[0] for one in there.values())
            there = {offset: (newest_ms, *one[1:]) for offset, one in there.items()}
        if kind == "aborted":
            self.aborted.append((pid, base))
        else:
            self.rows |= there
        if attributes == TRANSACTIONAL:
            self.batches.append(marker(self.end, pid, ABORT if kind == "aborted" else COMMIT))
            self.end += 1


KINDS: Final = ("plain", "plain", "committed", "aborted", "by broker")


@st.composite
def partition_logs(draw: st.DrawFn, records: st.SearchStrategy[Any]) -> PartitionLog:
    """Logs with gaps at their begin, within batches and where a marker is."""
    log = PartitionLog(end=draw(st.integers(0, 3)))
    some = st.lists(records | st.none(), min_size=1, max_size=6).filter(
        lambda one: one[-1:] != [None]
    )
    for one, codec, kind in draw(
        st.lists(st.tuples(some, PACKED_BY, st.sampled_from(KINDS)), max_size=4)
    ):
        log.add(one, codec, kind)
    return log

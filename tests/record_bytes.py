"""Kafka's records as the JVM lays them out for the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines._record_batches import varint

if TYPE_CHECKING:
    from collections.abc import Sequence

Header = tuple[str, bytes | None]


def _sized(data: bytes | None) -> bytes:
    return b"\x01" if data is None else varint(len(data)) + data


def record_bytes(
    number: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
) -> bytes:
    """One record, as the number-th of its batch."""
    parts = [b"\0\0", varint(number), _sized(key), _sized(value), varint(len(headers))]
    parts += [_sized(name.encode()) + _sized(data) for name, data in headers]
    body = b"".join(parts)
    return varint(len(body)) + body


def records(values: Sequence[bytes | None], *, first: int = 0) -> pa.BinaryArray:
    """Records under one key, numbered from `first`."""
    found = [record_bytes(first + n, b"k", value) for n, value in enumerate(values)]
    return pa.array(found, pa.binary())

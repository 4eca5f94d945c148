"""Kafka's records, byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.kafka.record_format import varint

if TYPE_CHECKING:
    from collections.abc import Sequence

Header = tuple[str, bytes | None]


def _sized(data: bytes | None) -> bytes:
    return b"\x01" if data is None else varint(len(data)) + data


def signed_varint(number: int) -> bytes:
    return varint(number) if number >= 0 else _odd_varint(-2 * number - 1)


def _odd_varint(zigzag: int) -> bytes:
    found = bytearray()
    while zigzag >= 0x80:
        found.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*found, zigzag])


def record_bytes(
    number: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header] = (),
    *,
    delta_ms: int = 0,
) -> bytes:
    """One record, as the number-th of its batch, so much newer than what the batch counts from."""
    parts = [
        b"\0",
        signed_varint(delta_ms),
        varint(number),
        _sized(key),
        _sized(value),
        varint(len(headers)),
    ]
    parts += [_sized(name.encode()) + _sized(data) for name, data in headers]
    body = b"".join(parts)
    return varint(len(body)) + body

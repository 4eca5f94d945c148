"""A hash that is the same in each process, to choose tasks by."""

from __future__ import annotations

import pickle
import zlib
from typing import Any, Final

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def stable_hash(value: Any) -> int:
    """Hash a value alike in each process: equal strings, numbers, bytes and lists of these.

    Python's own hash of strings and bytes differs from process to process.
    """
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return zlib.crc32(value)
    if isinstance(value, int | float):
        return _number_hash(value)
    if isinstance(value, list | tuple):
        hashed = len(value)
        for one in value:
            hashed = (hashed * 0x100000001B3 ^ stable_hash(one)) & _MASK
        return hashed ^ hashed >> 32
    return zlib.crc32(pickle.dumps(value, protocol=5))


def _number_hash(value: float) -> int:
    if isinstance(value, int) or value.is_integer():
        return (int(value) * _GOLDEN & _MASK) >> 32
    return zlib.crc32(repr(value).encode())

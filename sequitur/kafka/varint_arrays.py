"""Varints of whole columns of numbers, in Arrow's memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from sequitur.kafka.record_format import CONTINUED, VARINT_BITS

Longs = np.ndarray[Any, np.dtype[np.int64]]

TABLE_SIZE: Final = 1 << 13
"""A smaller zigzag varint takes at most two bytes."""


def varints(numbers: Longs) -> pa.BinaryArray:
    if not len(numbers) or (int(numbers.max()) < TABLE_SIZE and int(numbers.min()) >= 0):
        return VARINTS.take(pa.array(numbers))
    return _encoded(numbers)


def _encoded(numbers: Longs) -> pa.BinaryArray:
    wide = numbers.astype(np.int64, copy=False)  # lengths have 32 bits
    zigzag = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
    lengths = np.ones(len(numbers), np.int32)
    for bits in range(VARINT_BITS, 64, VARINT_BITS):
        lengths += zigzag >= np.uint64(1 << bits)
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))
    data = np.empty(ends[-1], np.uint8)
    for place in range(int(lengths.max())):
        own = lengths > place
        group = (zigzag[own] >> np.uint64(VARINT_BITS * place)) & np.uint64(CONTINUED - 1)
        group |= np.where(lengths[own] > place + 1, np.uint64(CONTINUED), np.uint64(0))
        data[ends[:-1][own] + place] = group
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(numbers), buffers)


VARINTS: Final = _encoded(np.arange(TABLE_SIZE))
"""Those of the numbers from 0 to below `TABLE_SIZE`.

Not by `pa.array`: it loads pandas to see whether it was given a part of that, a third of a second.
"""

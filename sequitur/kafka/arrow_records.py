"""Records of Kafka as columns of Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sequitur.kafka.stored_batches import java_text

if TYPE_CHECKING:
    from sequitur.kafka.stored_batches import Places, RecordColumns


def binary(places: Places) -> pa.BinaryArray:
    """Return byte strings. The gaps between them become elements of an array that is cut off."""
    count = len(places.starts)
    ends = np.empty(2 * count + 1, np.int32)
    ends[:-1:2] = places.starts
    ends[1::2] = places.starts + np.maximum(places.lengths, 0)
    ends[-1] = ends[-2] if count else 0
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(places.data)]
    with_gaps = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, buffers)
    is_null = places.lengths < 0
    return with_gaps.take(pa.array(np.arange(0, 2 * count, 2), mask=is_null))


def text(places: Places) -> pa.StringArray:
    found = binary(places)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([java_text(raw or b"") for raw in found.to_pylist()], pa.string())


def headers(columns: RecordColumns) -> pa.ListArray:
    """Return the headers of each record; null where it has none."""
    counts = columns.header_counts
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    if not counts.any():
        return pa.nulls(len(counts), kind)
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    parts = [text(columns.header_names), binary(columns.header_values)]
    each = pa.StructArray.from_arrays(parts, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(ends), each, type=kind, mask=pa.array(counts == 0))

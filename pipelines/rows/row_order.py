"""The order of rows by some columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    Longs = np.ndarray[Any, np.dtype[np.int64]]


def order_of(rows: pa.Table, names: Sequence[str]) -> Longs:
    """Return the places of rows in the order of columns; the first column decides first."""
    numbers = (comparable(rows[name]) for name in reversed(names))
    keys = [one for one in numbers if len(one) and one.min() != one.max()]
    order: Longs = np.lexsort(keys) if keys else np.arange(len(rows))
    return order


def comparable(column: pa.ChunkedArray) -> Longs:
    """Return numbers that compare like a column: texts by their bytes, as Spark does."""
    whole = column.combine_chunks()
    numbers: Longs = _ranks(whole) if pa.types.is_string(whole.type) else whole.to_numpy()
    return numbers


def _ranks(texts: pa.StringArray) -> Longs:
    """Return numbers in the order of the texts' bytes."""
    encoded = texts.dictionary_encode()
    different = [text.encode() for text in encoded.dictionary.to_pylist()]
    places = {text: number for number, text in enumerate(sorted(different))}
    ranks = np.array([places[text] for text in different], np.int64)
    taken: Longs = ranks[encoded.indices.to_numpy()]
    return taken

"""What a cursor is made of, so that two can be compared."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sequitur.consumer import Cursor


def state_of(cursor: Cursor) -> dict[str, Any]:
    """Return all that a cursor holds."""
    return {
        "identity": cursor.identity,
        "mark_delete": cursor.mark_delete,
        "read_position": cursor.read_position,
        "ranges": list(cursor.acked_ranges()),
        "counts": astuple(cursor.counts),
    }

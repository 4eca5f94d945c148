"""The number of the format of the documents that a step writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import StateFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP_FORMAT: Final = 7
"""Of what this version writes. Versions that read 5 alone know nothing of plans, and would write
the rows of a step again; in format 6 runs name their files, which now stand beside these, and an
output topic has one number of partitions for ever. Either refuses what this one has begun, by its
number."""
_READ: Final = (5, 6, STEP_FORMAT)


def check_format(document: Mapping[str, Any]) -> None:
    """Check that this version reads a document."""
    if document.get("format") not in _READ:
        known = ", ".join(map(str, _READ))
        raise StateFormatError(
            f"step of format {document.get('format')!r}; this version reads {known}"
        )

"""The number of the format of the documents that a step writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer._errors import StateFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP_FORMAT: Final = 5


def check_format(document: Mapping[str, Any]) -> None:
    """Check that this version reads a document.

    Raises:
        StateFormatError: It does not.
    """
    if document.get("format") != STEP_FORMAT:
        raise StateFormatError(
            f"step of format {document.get('format')!r}; this version reads {STEP_FORMAT}"
        )

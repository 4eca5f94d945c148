"""Lengths of time, as users write them in code."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

from sequitur.base.units import Duration, milliseconds
from sequitur.errors import TopologyBuildError

Length = timedelta | float | str
"""Seconds, a `timedelta`, or text such as "10 s"."""
_DURATION: Final = TypeAdapter(Duration)


def length_ms(whose: str, name: str, length: Length, *, least: int = 1) -> int:
    """Return a length in ms.

    Raises:
        TopologyBuildError: It is not a length, or less than `least` ms.
    """
    try:
        found = milliseconds(_DURATION.validate_python(length))
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise TopologyBuildError(f"{whose}: {name} = {length!r}: {why}") from error
    if found < least:
        raise TopologyBuildError(f"{whose}: {name} = {length!r}: expected {least} ms or more")
    return found

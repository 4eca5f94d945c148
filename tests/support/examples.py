"""How many examples a property is tried on: so many times what the profile in use says."""

from __future__ import annotations

from hypothesis import settings


def examples(times: float) -> int:
    """Give `max_examples` for a property whose examples are cheaper, or dearer, than others."""
    default: int = settings().max_examples
    return max(1, round(default * times))

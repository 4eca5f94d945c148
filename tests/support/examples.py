"""How many examples a property is tried on: so many times what the profile in use says."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

_IN_ALL: Final = 100
"""What `make test-all` tries a usual property on; the profile of `make test` says fewer."""


def examples(times: float) -> int:
    """Give `max_examples` for a property whose examples are cheaper, or dearer, than others."""
    default: int = settings().max_examples
    return max(1, round(default * times))


def examples_in(*, test: int, test_all: int) -> int:
    """Give `max_examples` for a property whose examples are counted, in `make test` and in all."""
    return test_all if settings().max_examples >= _IN_ALL else test

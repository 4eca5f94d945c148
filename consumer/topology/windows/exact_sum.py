"""Sums without a rounding error, whatever the order of the numbers.

A sum is kept as `[whole, *partials]`: the integers' sum, and floats that do not overlap. The exact
sum of these is that of all floats (Shewchuk, "Adaptive Precision Floating-Point Arithmetic", 1997).
Only the result is rounded, once.
"""

from __future__ import annotations

import math
from typing import Any, Final

ExactSum = list[Any]
"""`[whole, *partials]`, as documents keep it."""
LARGEST: Final = 1e290
"""Numbers are at most so large, so that no sum of them overflows on its way."""
_LARGEST_WHOLE: Final = 1 << 62


def empty() -> ExactSum:
    return [0]


def add(total: ExactSum, number: float) -> None:
    """Add a number to a sum, in place.

    Raises:
        TypeError: It is no number.
        ValueError: It is not finite, or larger than 1e290.
    """
    if number.__class__ is float:
        if not -LARGEST <= number <= LARGEST:  # NaN is not, either
            raise ValueError(f"{number!r} is not a number of at most {LARGEST}")
        _add_float(total, number)
        return
    if isinstance(number, int):
        whole = total[0] + int(number)
        if -_LARGEST_WHOLE < whole < _LARGEST_WHOLE:
            total[0] = whole
            return
        total[0] = 0
        _add_large(total, whole)
        return
    raise TypeError(f"{number!r:.100} is no number")


def merge(total: ExactSum, other: ExactSum) -> None:
    """Add another sum, in place."""
    add(total, other[0])
    for partial in other[1:]:
        _add_float(total, partial)


def rounded(total: ExactSum) -> int | float:
    """Return a sum: exact if all numbers were integers below 2**62 together, else rounded once."""
    if len(total) == 1:
        return int(total[0])
    if not total[0]:
        return math.fsum(total[1:])
    numerator, denominator = _ratio(total)
    return numerator / denominator


def mean(total: ExactSum, count: int) -> float | None:
    """Return a sum divided by a count, rounded once; None of nothing."""
    if not count:
        return None
    numerator, denominator = _ratio(total)
    return numerator / (denominator * count)  # of two integers it is rounded once


def _ratio(total: ExactSum) -> tuple[int, int]:
    """Return a sum as numerator and denominator, a power of two."""
    numerator, denominator = total[0], 1
    for partial in total[1:]:
        above, below = partial.as_integer_ratio()
        if below > denominator:
            numerator *= below // denominator
            denominator = below
        numerator += above * (denominator // below)
    return numerator, denominator


def _add_float(total: ExactSum, number: float) -> None:
    kept = 1
    for partial in total[1:]:
        if abs(number) < abs(partial):
            number, partial = partial, number  # noqa: PLW2901 - the algorithm's own names
        high = number + partial
        low = partial - (high - number)
        if low:
            total[kept] = low
            kept += 1
        number = high
    total[kept:] = [number]


def _add_large(total: ExactSum, whole: int) -> None:
    """Add an integer as floats that are its exact sum."""
    if abs(whole) > LARGEST:
        raise ValueError(f"an integer of {whole.bit_length()} bits is more than {LARGEST}")
    while whole:
        high = float(whole)
        _add_float(total, high)
        whole -= int(high)

"""A hash that is the same in each process, to choose tasks by.

Values that Python calls equal have one hash, of whatever types they are: 1, True, `Decimal(1)` and
NumPy's 1; bytes and a bytearray; one instant in two time zones; dicts and sets in any order. A type
of which that is not known is refused by name. It cannot be hashed by what pickling makes of it:
equal values have different pickles, so one key would go to two tasks.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import fractions
import math
import pickle
import uuid
import zlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.errors import UngroupableValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HASH_VERSION: Final = 2
"""The version of `stable_hash` that new jobs group by. Version 1 hashed the pickles of what is not
text, bytes, an int or float, or a list or tuple."""

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive times are told apart from instants
_INSTANT: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def stable_hash(value: Any) -> int:
    """Hash a value alike in each process, and as all values that it equals.

    Known are None, text, bytes and what is like them, numbers of the standard library and NumPy,
    dates, times and durations, UUIDs, enumerations, and lists, tuples, sets, mappings and
    dataclasses of these.

    Raises:
        UngroupableValueError: It is of another type.
    """
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return zlib.crc32(value)
    if isinstance(value, int | float):
        return _number_hash(value)
    if isinstance(value, list | tuple):
        return _sequence_hash([stable_hash(one) for one in value])
    return _hash_of_other(value)


def first_stable_hash(value: Any) -> int:
    """Hash a value as version 1 did, for checkpoints that were begun with it."""
    if isinstance(value, list | tuple):
        return _sequence_hash([first_stable_hash(one) for one in value])
    if isinstance(value, float) and not value.is_integer():
        return zlib.crc32(repr(value).encode())
    if isinstance(value, str | bytes | int | float):
        return stable_hash(value)
    return zlib.crc32(pickle.dumps(value, protocol=5))


def hash_of_version(version: int) -> Callable[[Any], int]:
    """Return the hash that a job of this version groups by."""
    return first_stable_hash if version == 1 else stable_hash


def _sequence_hash(hashes: list[int]) -> int:
    hashed = len(hashes)
    for one in hashes:
        hashed = (hashed * 0x100000001B3 ^ one) & _MASK
    return hashed ^ hashed >> 32


def _unordered_hash(hashes: Iterable[int]) -> int:
    return _sequence_hash([sum(one * one + _GOLDEN * one for one in hashes) & _MASK])


def _number_hash(value: float) -> int:
    if isinstance(value, int) or value.is_integer():
        return (int(value) * _GOLDEN & _MASK) >> 32
    return zlib.crc32(repr(float(value)).encode())


def _hash_of_other(value: Any) -> int:
    """Hash what is neither text, bytes, an int or float, nor a list or tuple."""
    if value is None:
        return _NONE
    if isinstance(value, bytearray | memoryview):
        return zlib.crc32(value)
    for kind, hash_of_kind in _KINDS:
        if isinstance(value, kind):
            return hash_of_kind(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass_hash(value)
    kind = type(value)
    raise UngroupableValueError(
        f"{value!r:.200} is of type {kind.__module__}.{kind.__qualname__}, and it is not known "
        "which values equal it: group by a field of it, or by text or a number made of it"
    )


def _dataclass_hash(value: Any) -> int:
    kind = type(value)
    compared = [getattr(value, one.name) for one in dataclasses.fields(value) if one.compare]
    return stable_hash([kind.__module__, kind.__qualname__, compared])


def _mapping_hash(value: Mapping[Any, Any]) -> int:
    return _unordered_hash(stable_hash(item) for item in value.items())


def _set_hash(value: AbstractSet[Any]) -> int:
    return _unordered_hash(map(stable_hash, value))


def _rational_hash(value: decimal.Decimal | fractions.Fraction) -> int:
    """Hash a number that an int or a float may equal as that one."""
    if isinstance(value, decimal.Decimal) and value.is_nan():
        return _number_hash(math.nan)
    try:
        near = float(value)
    except OverflowError:
        near = math.inf
    if near == value:
        return _number_hash(near)
    if isinstance(value, decimal.Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        if value == value.to_integral_value() and exponent >= 0:
            # The power by itself may have more digits than there is memory.
            whole = int("".join(map(str, digits))) * pow(10, exponent, 1 << 64)
            return _number_hash(-whole if sign else whole)
        if value == value.to_integral_value():
            return _number_hash(int(value))
    elif value.denominator == 1:
        return _number_hash(value.numerator)
    return _number_hash(hash(value))  # of numbers it is the same in each process, and of equal ones


def _complex_hash(value: complex) -> int:
    return _number_hash(value.real) if value.imag == 0 else stable_hash([value.real, value.imag])


def _duration_hash(value: dt.timedelta) -> int:
    return stable_hash(["duration", value // dt.timedelta(microseconds=1)])


def _datetime_hash(value: dt.datetime) -> int:
    if value.utcoffset() is None:
        return _duration_hash(value.replace(tzinfo=None) - _EPOCH)
    return _duration_hash(value - _INSTANT)


def _date_hash(value: dt.date) -> int:
    return _datetime_hash(dt.datetime(value.year, value.month, value.day))  # noqa: DTZ001


def _time_hash(value: dt.time) -> int:
    of_day = dt.timedelta(
        hours=value.hour, minutes=value.minute, seconds=value.second,
        microseconds=value.microsecond,
    )  # fmt: skip
    return _duration_hash(of_day - (value.utcoffset() or dt.timedelta()))


def _numpy_hash(value: Any) -> int:
    if isinstance(value, np.datetime64 | np.timedelta64):
        kind = "datetime64" if isinstance(value, np.datetime64) else "timedelta64"
        value = value.astype(f"{kind}[us]")
    if isinstance(value, np.longdouble):  # it is no narrower than it looks to Python
        return _rational_hash(fractions.Fraction(*value.as_integer_ratio()))
    return stable_hash(value.item())


def _enum_hash(value: Enum) -> int:
    kind = type(value)
    return stable_hash([kind.__module__, kind.__qualname__, value.name])


def _uuid_hash(value: uuid.UUID) -> int:
    return zlib.crc32(value.bytes)


_NONE: Final = zlib.crc32(pickle.dumps(None, protocol=5))
_KINDS: Final[tuple[tuple[Any, Callable[[Any], int]], ...]] = (
    (np.generic, _numpy_hash),
    (Mapping, _mapping_hash),
    (AbstractSet, _set_hash),
    (dt.datetime, _datetime_hash),
    (dt.date, _date_hash),
    (dt.time, _time_hash),
    (dt.timedelta, _duration_hash),
    (decimal.Decimal | fractions.Fraction, _rational_hash),
    (complex, _complex_hash),
    (uuid.UUID, _uuid_hash),
    (Enum, _enum_hash),
)

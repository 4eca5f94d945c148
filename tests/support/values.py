"""Values with other fields, whether they are dataclasses or Structs."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

_Value = TypeVar("_Value")


def replace(value: _Value, /, **changes: Any) -> _Value:
    """Return a copy of a value with other fields."""
    is_struct = isinstance(value, msgspec.Struct)
    copied: Any = msgspec.structs.replace if is_struct else dataclasses.replace
    other: _Value = copied(value, **changes)
    return other

"""Which keys and values fit a state, and how they come back from its table."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, cast

from sequitur.errors import StateValueError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer.topology.state.store import Key, State


KEY_BYTES_MAX: Final = 2_000
"""A key has to fit a page of PostgreSQL's index: a third of 8 KiB, its own overhead included."""
VALUE_BYTES_MAX: Final = 256 << 20
"""PostgreSQL ends the connection over a statement of 1 GiB, and bytes are written as digits."""
_INT_MAX: Final = (1 << 63) - 1
_SHOWN: Final = 80
_SHORT: Final = 500  # characters: in UTF-8 these are never more than KEY_BYTES_MAX


def fit_key(state: State, key: Any) -> Key:
    """Return a key as the state's table has it."""
    if type(key) is str and state.key is str and len(key) <= _SHORT and _is_plain(key):
        return key  # most are like this
    if type(key) is not state.key:
        raise StateValueError(
            f"state {state.name!r} has keys of {state.key.__name__}, and key {shown(key)} is "
            f"{type(key).__name__}: convert it, or declare the state with another key type"
        )
    reason = _misfit(key)
    size = len(key.encode()) if reason is None and isinstance(key, str) else 0
    size = len(key) if isinstance(key, bytes) else size
    if size > KEY_BYTES_MAX:
        reason = f"has {size} bytes, and a key has at most {KEY_BYTES_MAX}: use a hash of it"
    if reason is not None:
        said = f"state {state.name!r}: key {shown(key)} {reason}"
        raise StateValueError(said, (key,), is_key=True)
    return cast("Key", key)


def fit_keys(state: State, keys: Iterable[Any]) -> list[Key]:
    fitted: list[Key] = []
    refused: list[StateValueError] = []
    for key in keys:
        try:
            fitted.append(fit_key(state, key))
        except StateValueError as error:
            refused.append(error)
    if refused:
        said = refused[0]
        all_keys = tuple(dict.fromkeys(key for one in refused for key in one.keys))
        raise StateValueError(str(said), all_keys, is_key=said.is_key) from said
    return fitted


def fit_value(state: State, key: Key, value: Any) -> Any:
    """Return a value as the state's table gives it back."""
    if type(value) is int and state.value is int and -_INT_MAX <= value <= _INT_MAX:
        return value  # most are like this
    reason: str | None
    if value is None:
        reason = "is not a value: give one, or remove the key with multi_remove"
    elif state.value is object:
        return _json_value(state, key, value)
    elif state.value is float and type(value) is int:
        reason = _misfit(value)
        if reason is None and int(float(value)) != value:
            reason = "is not a float without loss: convert it"
        value = float(value) if reason is None else value
    elif type(value) is float and state.value is float:
        reason = _misfit(value)
        value += 0.0  # no negative zero: SQLite has none
    elif type(value) is not state.value:
        reason = (
            f"is {type(value).__name__}, and the state's values are {state.value.__name__}: "
            "convert it, or declare the state with another value type"
        )
    else:
        reason = _misfit(value) or _too_large(value)
    if reason is not None:
        said = f"state {state.name!r}, key {shown(key)}: {shown(value)} {reason}"
        raise StateValueError(said, (key,))
    return value


def is_surely_held(column: Any, *, takes_unicode: bool) -> bool:
    """Whether every database takes a key or value that fits, in the form that its column has.

    Sure are numbers, and text and bytes that are short enough for an index that somebody made.
    """
    if isinstance(column, str):
        return len(column) <= _SHORT and (takes_unicode or column.isascii())
    return not isinstance(column, bytes) or len(column) <= _SHORT


def copy_of(state: State, value: Any) -> Any:
    """Return a copy that its holder may change without changing the stored value."""
    if state.value is object and isinstance(value, list | dict):
        return json.loads(json.dumps(value))
    return value


def shown(value: object) -> str:
    """Return a value for a message. A long one is cut."""
    text = repr(value[: _SHOWN + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_plain(text: str) -> bool:
    return text.isascii() and "\0" not in text


def _misfit(value: object) -> str | None:
    """Return why a value of the right type does not fit its column; None if it does."""
    if isinstance(value, int) and not -_INT_MAX - 1 <= value <= _INT_MAX:
        return "has more than 64 bits: keep it as str, or as object"
    if isinstance(value, float) and math.isnan(value):
        return "is not a number, which no database keeps: leave it out"
    if isinstance(value, str):
        if "\0" in value:
            return "has a NUL, which no text column holds: take it out, or use bytes"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "is not valid Unicode (a lone surrogate): decode it in another way, or use bytes"
    return None


def _too_large(value: object) -> str | None:
    """Return why a value is too large for its column; None if it is not."""
    size = len(value) if isinstance(value, str | bytes) else 0
    if isinstance(value, str) and size > VALUE_BYTES_MAX // 4:
        size = len(value.encode())
    if size <= VALUE_BYTES_MAX:
        return None
    return f"has {size} bytes, and a value has at most {VALUE_BYTES_MAX}: keep parts of it"


def _json_value(state: State, key: Key, value: Any) -> Any:
    try:
        text = json.dumps(value, allow_nan=False)
        again = json.loads(text)
        is_same = bool(again == value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateValueError(
            f"state {state.name!r}, key {shown(key)}: {shown(value)} has no form in JSON "
            f"({error}): make it of dict, list, str, int, float, bool and None",
            (key,),
        ) from error
    if not is_same:
        raise StateValueError(
            f"state {state.name!r}, key {shown(key)}: {shown(value)} comes back from JSON as "
            f"{shown(again)}: use lists for tuples, and str for the keys of dicts",
            (key,),
        )
    reason = _too_large(text)
    if reason is not None:
        said = f"state {state.name!r}, key {shown(key)}: in JSON it {reason}"
        raise StateValueError(said, (key,))
    return again

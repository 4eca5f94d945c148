"""Arrays as PostgreSQL reads them: written here in one go, which the driver does value by value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ARRAY_TYPES: Final[dict[type, str]] = {
    str: "text[]",
    int: "bigint[]",
    bytes: "bytea[]",
    float: "double precision[]",
    bool: "boolean[]",
    object: "text[]",
}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _hexadecimal(data: bytes) -> str:
    return f'"\\\\x{data.hex()}"'


_ITEM: Final[dict[type, Callable[[Any], str]]] = {
    str: _quoted,
    int: str,
    bytes: _hexadecimal,
    float: repr,
    bool: str,
    object: _quoted,
}


def array_literal(kind: type, items: Iterable[Any]) -> str:
    """Return an array's text form, for a parameter that is cast to `ARRAY_TYPES`."""
    said = _ITEM[kind]
    return f"{{{','.join(['NULL' if item is None else said(item) for item in items])}}}"

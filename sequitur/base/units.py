"""Settings with a unit, lengths of time and sizes, and those that name an address, `HOST:PORT`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|d)?\s*", re.ASCII)
_DURATION_UNIT_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_LONGEST: Final = timedelta(days=36_500)
"""Longer durations overflow the system's clocks that wait for them."""
_SIZE: Final = re.compile(r"\s*([0-9]+)\s*(B|kB|KB|KiB|MB|MiB|GB|GiB)?\s*", re.ASCII)
_SIZE_UNIT_BYTES: Final = {
    "B": 1,
    "kB": 1_000,
    "KB": 1_000,
    "KiB": 1 << 10,
    "MB": 1_000_000,
    "MiB": 1 << 20,
    "GB": 1_000_000_000,
    "GiB": 1 << 30,
}


def _parse_duration(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a duration such as '10 s', '500 ms' or '2 min'")  # noqa: TRY004
    try:
        if isinstance(value, int | float):
            value = timedelta(seconds=value)
        elif isinstance(value, str):
            match = _DURATION.fullmatch(value)
            if match is None:
                raise ValueError("expected a duration such as '10 s', '500 ms' or '2 min'")
            value = timedelta(milliseconds=float(match[1]) * _DURATION_UNIT_MS[match[2] or "s"])
    except OverflowError:
        value = timedelta.max
    if isinstance(value, timedelta) and value > _LONGEST:
        raise ValueError(f"expected at most {format_duration(_LONGEST)}")
    return value


def _parse_size(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError("expected a size such as '64 MiB', '500 kB' or a number of bytes")
    return int(match[1]) * _SIZE_UNIT_BYTES[match[2] or "B"]


def milliseconds(duration: timedelta) -> int:
    """Return whole milliseconds, rounded down."""
    return duration // timedelta(milliseconds=1)


def format_duration(duration: timedelta) -> str:
    """Return a duration in the largest unit that keeps it whole, as settings take it: '10 s'."""
    value_ms = milliseconds(duration)
    for unit in ("d", "h", "min", "s"):
        if value_ms and value_ms % _DURATION_UNIT_MS[unit] == 0:
            return f"{value_ms // _DURATION_UNIT_MS[unit]} {unit}"
    return f"{value_ms} ms"


Duration = Annotated[
    timedelta,
    BeforeValidator(_parse_duration),
    PlainSerializer(format_duration, return_type=str),
    Field(ge=timedelta(0)),
]
"""A length of time: '10 s', '500 ms', '2 min', '1 h', '1 d', or seconds. Not negative."""

Size = Annotated[int, BeforeValidator(_parse_size), Field(ge=0)]
"""A number of bytes: '64 MiB', '500 kB', or a plain number."""


def split(value: object) -> object:
    """Return the parts between a text's commas, without surrounding blanks."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(split)]
"""Several texts: a list, or one text with commas."""


MAX_PORT: Final = 65_535


def parse_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`. An IPv6 host stands in brackets, and port 0 is any free one."""
    host, _, port = text.rpartition(":")
    if text.startswith("//"):
        raise ValueError(f"{text!r}: expected HOST:PORT, without slashes")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets, [::1]")
    if not host or any(sign in host for sign in "/[] "):
        raise ValueError(f"{text!r}: expected a host, as in 127.0.0.1:8080")
    if not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise ValueError(f"{text!r}: expected a port from 0 to {MAX_PORT}")
    return host, int(port)


def _check_address(text: str) -> str:
    parse_address(text)
    return text


Address = Annotated[str, AfterValidator(_check_address)]
"""`HOST:PORT`, as `parse_address` reads it."""

"""Settings that name an address, `HOST:PORT`."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator

_MAX_PORT: Final = 65_535


def parse_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`; an IPv6 host stands in brackets, port 0 is any free one."""
    host, _, port = text.rpartition(":")
    if text.startswith("//"):
        raise ValueError(f"{text!r}: expected HOST:PORT, without slashes")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets, [::1]")
    if not host or any(sign in host for sign in "/[] "):
        raise ValueError(f"{text!r}: expected a host, as in 127.0.0.1:8080")
    if not (port.isascii() and port.isdigit() and int(port) <= _MAX_PORT):
        raise ValueError(f"{text!r}: expected a port from 0 to {_MAX_PORT}")
    return host, int(port)


def _check_address(text: str) -> str:
    parse_address(text)
    return text


Address = Annotated[str, AfterValidator(_check_address)]
"""`HOST:PORT`, as `parse_address` reads it."""

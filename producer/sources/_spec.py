"""The setting `source`: which source, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from producer.sources._errors import SourceSpecError

SourceKind = Literal["cpu", "stdin", "file", "dir", "http", "replay"]

_EXPECTED: Final = "expected cpu, stdin, file:PATH, dir:PATH, http:HOST:PORT or replay:PATH"
_MAX_PORT: Final = 65_535
_PATH_KINDS: Final[dict[str, SourceKind]] = {"file": "file", "dir": "dir", "replay": "replay"}


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source by name.

    Attributes:
        kind: Which.
        path: What a `file`, `dir` or `replay` reads; else empty.
        host: Where `http` listens; else empty.
        port: Likewise; 0 is any free port.
    """

    kind: SourceKind
    path: str = ""
    host: str = ""
    port: int = 0


def parse_source(text: str) -> SourceSpec:
    """Read `cpu`, `stdin`, `file:PATH`, `dir:PATH`, `http:HOST:PORT` or `replay:PATH`.

    Raises:
        SourceSpecError: It is none of these; the message says what is wrong with it.
    """
    kind, colon, rest = text.partition(":")
    if kind in {"cpu", "stdin"}:
        if colon:
            raise SourceSpecError(f"source {text!r}: {kind} takes nothing after it")
        return SourceSpec("cpu" if kind == "cpu" else "stdin")
    if kind in _PATH_KINDS:
        if not rest:
            raise SourceSpecError(f"source {text!r}: expected a path, as in {kind}:PATH")
        if "\0" in rest:
            raise SourceSpecError(f"source {text!r}: a path cannot hold a null byte")
        return SourceSpec(_PATH_KINDS[kind], path=rest)
    if kind == "http":
        return _parse_address(text, rest)
    raise SourceSpecError(f"source {text!r}: {_EXPECTED}")


def _parse_address(text: str, address: str) -> SourceSpec:
    host, _, port = address.rpartition(":")
    if address.startswith("//"):
        raise SourceSpecError(f"source {text!r}: expected http:HOST:PORT, without slashes")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise SourceSpecError(f"source {text!r}: an IPv6 address stands in brackets, [::1]")
    if not host or any(sign in host for sign in "/[] "):
        raise SourceSpecError(f"source {text!r}: expected a host, as in http:127.0.0.1:8080")
    if not (port.isascii() and port.isdigit() and int(port) <= _MAX_PORT):
        raise SourceSpecError(f"source {text!r}: expected a port from 0 to {_MAX_PORT}")
    return SourceSpec("http", host=host, port=int(port))

"""The setting `source`: which source, and what it reads."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final, Literal

from sequitur.base.address import parse_address
from sequitur.errors import SourceSpecError

SourceKind = Literal["cpu", "stdin", "file", "dir", "http", "replay"]

_EXPECTED: Final = "expected cpu, stdin, file:PATH, dir:PATH, http:HOST:PORT or replay:PATH"
_PATH_KINDS: Final[dict[str, SourceKind]] = {"file": "file", "dir": "dir", "replay": "replay"}


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source by name."""

    kind: SourceKind
    path: str = ""  # what a `file`, `dir` or `replay` reads; else empty
    host: str = ""  # where `http` listens; else empty
    port: int = 0  # likewise; 0 is any free port

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect to `host`; of names only localhost is known."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


def parse_source(text: str) -> SourceSpec:
    """Read `cpu`, `stdin`, `file:PATH`, `dir:PATH`, `http:HOST:PORT` or `replay:PATH`."""
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
        try:
            host, port = parse_address(rest)
        except ValueError as error:
            raise SourceSpecError(f"source {text!r}: {error}") from None
        return SourceSpec("http", host=host, port=port)
    raise SourceSpecError(f"source {text!r}: {_EXPECTED}")

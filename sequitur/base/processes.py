"""Who a process is, so that another can tell whether it still runs."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROC: Final = Path("/proc")
_STATE, _STARTED = 0, 19
"""Fields of `/proc/PID/stat` behind the command's name: see proc(5), there counted from 3."""
_ENDED: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process."""

    host: str  # the name of its machine or container
    process: int
    # within what such an id is one process's: this start of the machine, this container; None where
    # that cannot be told
    space: str | None = None
    # when it started, in ticks of that machine: an id is given out again
    started: int | None = None

    @classmethod
    def own(cls) -> Self:
        """Return this process."""
        process = os.getpid()
        found = _status(process)
        return cls(socket.gethostname(), process, _space(), None if found is None else found[1])

    def is_gone(self) -> bool:
        """Tell whether it has surely ended; of a process on another machine nothing is known."""
        if self.space is None or self.started is None or self.space != _space():
            return False
        found = _status(self.process)
        return found is None or found[0] in _ENDED or found[1] != self.started

    def is_near(self) -> bool:
        """Tell whether it runs on this machine, and so has its clock."""
        return self.space is not None and self.space == _space()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read it back from a JSON document of its fields."""
        return cls(**{one.name: document[one.name] for one in fields(cls)})

    def __str__(self) -> str:
        """Return the name that messages use."""
        return f"host {self.host}, process {self.process}"


def _space() -> str | None:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return None


def _status(process: int) -> tuple[str, int] | None:
    """State and start of a process; None when there is none, or no way to tell."""
    try:
        fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[_STATE], int(fields[_STARTED])

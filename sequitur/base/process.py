"""This process: who it is, so that another can tell whether it runs; its clock, tasks, files."""

from __future__ import annotations

import os
import pwd
import socket
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

import msgspec

from sequitur.base.text import encodable
from sequitur.errors import SettingsError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    T = TypeVar("T")


_PROC: Final = Path("/proc")
_STATE, _STARTED = 0, 19
"""Fields of `/proc/PID/stat` behind the command's name. In proc(5) numbers begin at 3."""
_ENDED: Final = frozenset("ZXx")


class ProcessIdentity(msgspec.Struct, frozen=True):
    host: str  # the name of its machine or container
    process: int
    # the scope of a process id: this start of the machine, this container; None if unknown
    space: str | None
    # when it started, in the machine's ticks: ids are used again
    started: int | None

    @classmethod
    def own(cls) -> Self:
        process = os.getpid()
        found = _status(process)
        return cls(socket.gethostname(), process, _space(), None if found is None else found[1])

    def is_gone(self) -> bool:
        """Tell whether it has surely ended; of a process on another machine nothing is known.

        `/proc` may hide processes of other users (`hidepid`), or refuse to show them. So what is
        not found there has ended only if the kernel knows no process of that number.
        """
        if self.space is None or self.started is None or self.space != _space():
            return False
        found = _status(self.process)
        if found is None:
            return not _is_there(self.process)
        return found[0] in _ENDED or found[1] != self.started

    def is_near(self) -> bool:
        """Tell whether it runs on this machine, and so has this machine's clock."""
        return self.space is not None and self.space == _space()

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
    """Return a process's state and start; None if it does not exist or is hidden."""
    try:
        fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[_STATE], int(fields[_STARTED])


def _is_there(process: int) -> bool:
    """Tell whether a process may exist, for any user."""
    try:
        os.kill(process, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


_SET_MS: Final = 60_000


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class StampClock:
    """What time records get: the machine's, corrected once a broker has said that it is another.

    A correction lasts until the machine's clock is set again: that may have put it right.
    """

    def __init__(
        self,
        wall_ms: Callable[[], int] = wall_clock_ms,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_ms = wall_ms
        self._steady_s = steady_s
        self._ahead_ms = 0
        self._set_at_ms = 0.0

    @property
    def ahead_ms(self) -> int:
        """How far the machine's clock is ahead of the broker's, in ms; 0 while unknown."""
        return self._ahead_ms

    def now_ms(self) -> int:
        now_ms = self._wall_ms()
        if self._ahead_ms and abs(self._set_ms(now_ms) - self._set_at_ms) > _SET_MS:
            self._ahead_ms = 0
        return now_ms - self._ahead_ms

    def correct(self, broker_ms: int) -> None:
        now_ms = self._wall_ms()
        self._ahead_ms = now_ms - broker_ms
        self._set_at_ms = self._set_ms(now_ms)

    def _set_ms(self, now_ms: int) -> float:
        """Return a value that changes only when the machine's clock is set."""
        return now_ms - self._steady_s() * 1000


def report_failure(task: asyncio.Task[None], on_failure: Callable[[Exception], None]) -> None:
    """Call `on_failure` with the exception that ends a task, unless it is cancelled."""

    def report(ended: asyncio.Task[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            assert isinstance(error, Exception)
            on_failure(error)

    task.add_done_callback(report)


def user_folder(
    variable: str, below_home: str, *, environ: Mapping[str, str], instead: str
) -> Path:
    """Return the folder that an XDG variable names, or else one below the user's home.

    Raises:
        SettingsError: There is no home, as for a user that a container was given by number only;
            or the variable holds a relative path. The message names what to give instead.
    """
    for name, below in ((variable, ""), ("HOME", below_home)):
        given = environ.get(name)
        if given and not Path(given).is_absolute():
            raise SettingsError(
                f"{name} is the relative path {encodable(given)!r}: "
                f"give an absolute one, or {instead}"
            )
        if given:
            return Path(given, below)
    user = os.getuid()
    try:
        return Path(pwd.getpwuid(user).pw_dir, below_home)
    except KeyError:
        raise SettingsError(
            f"no home folder: HOME is not set, and the user {user} has no entry in /etc/passwd. "
            f"Give {instead}, or {variable}"
        ) from None


def beside(work: Callable[[], T], name: str) -> Future[T]:
    """Do work in a thread for which nobody has to wait, not even the end of the process."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is the result
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result


def sync(path: Path) -> None:
    """Return once a file's bytes, or a folder's names, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless they exist. Their names outlast a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync(path.parent)

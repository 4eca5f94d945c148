"""Child processes that end with the program that started them, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_COPIED_WITHIN_S: Final = 5.0


def run_with_children(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    timeout_s: float,
    leave_out: str | None = None,
) -> int:
    """Run a command to its end. If the wait ends early, kill it with its children."""
    process = copying = None
    try:
        with holding_signals():
            # Give it a session of its own, so that all its children can be killed with it.
            process = subprocess.Popen(
                command,
                env=environ,
                start_new_session=True,
                stderr=None if leave_out is None else subprocess.PIPE,
                text=True,
                errors="replace",
            )
        if leave_out is not None:
            copying = threading.Thread(target=_copy, args=(process, leave_out), daemon=True)
            copying.start()
        return process.wait(timeout_s)
    finally:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if copying is not None:
            # A process of another session may still hold the pipe open.
            copying.join(_COPIED_WITHIN_S)


def _copy(process: subprocess.Popen[str], leave_out: str) -> None:
    """Copy a process's standard error to ours, except lines that begin with `leave_out`."""
    assert process.stderr is not None
    with process.stderr as said:
        for line in said:
            if not line.startswith(leave_out):
                sys.stderr.write(line)
                sys.stderr.flush()


@contextlib.contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Leave the block by an exception at SIGINT or SIGTERM; further signals change nothing.

    So the block's `finally` clauses end what it has started, and take the time that they need. Only
    the main thread may call it.
    """

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, lambda *_: None)  # children would inherit an ignored signal
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, leave) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def holding_signals() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block ends, which starts a process and notes it.

    Otherwise a signal during the start would leave the process running, since nobody knows of it
    yet. Signals do not interrupt other threads than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {each: signal.signal(each, lambda number, _: held.append(number)) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if held:
            signal.raise_signal(held[0])

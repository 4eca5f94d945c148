"""Child processes that end with the command that started them, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Leave the block by an exception at SIGINT or SIGTERM; further signals change nothing.

    So what the block has started is ended by its `finally` clauses, which take their time. For the
    main thread.

    Raises:
        KeyboardInterrupt: At SIGINT.
        SystemExit: At SIGTERM, with 128 and the signal's number.
    """

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, lambda *_: None)  # children would inherit that it is ignored
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
    """Have SIGINT and SIGTERM take effect behind the block, which starts a process and notes it.

    Otherwise a signal while the process is started leaves it running: nobody knows of it yet.
    Threads other than the main one are not interrupted by signals.
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


def run_with_children(
    command: Sequence[str], environ: Mapping[str, str], *, timeout_s: float
) -> int:
    """Run a command to its end; when the wait is given up, kill it with its children.

    Returns:
        Its status.

    Raises:
        subprocess.TimeoutExpired: It took too long.
    """
    process = None
    try:
        with holding_signals():
            # A session of its own, so that all that it starts can be killed together.
            process = subprocess.Popen(command, env=environ, start_new_session=True)
        return process.wait(timeout_s)
    finally:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

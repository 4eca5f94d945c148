"""A bolt's call that never returns is ended: by an exception in it, or else with its process."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from consumer.topology import BoltTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumer.topology import Executor

_LOOKS: Final = 10
"""So often it is looked, in the time that a call may take."""
_MOST_OFTEN_S: Final = 0.02
_LAST_RESORT: Final = 3
"""A call that even an exception does not end is ended with its process after so many times that."""
_LAST_RESORT_S: Final = 30.0
"""And not before: what else a task does holds up the look at its calls, too."""


@contextlib.contextmanager
def ending_overrun_calls(executor: Executor, timeout_s: float) -> Iterator[None]:
    """While the block runs, raise `BoltTimeoutError` in a call that has overrun.

    By a signal, which only a process's first thread gets; in another one nothing is done. A call
    that waits in C code that signals do not interrupt is ended with its process, which costs a
    retry (`pipelines._crashes`).

    Args:
        executor: Whose calls.
        timeout_s: How long one may take.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: Any = None
    since_s = 0.0
    look_s = max(_MOST_OFTEN_S, timeout_s / _LOOKS)
    last_resort_s = max(_LAST_RESORT_S, _LAST_RESORT * timeout_s) + look_s

    def look(_signal: int, _frame: object) -> None:
        nonlocal seen, since_s
        faulthandler.dump_traceback_later(last_resort_s, exit=True)
        call: Any = executor.in_call or executor.finishing
        now_s = time.monotonic()
        if call is None or call is not seen:
            seen, since_s = call, now_s
        elif now_s - since_s >= timeout_s:
            seen = None
            raise BoltTimeoutError

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, look_s, look_s)
    faulthandler.dump_traceback_later(last_resort_s, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)

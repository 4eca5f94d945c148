"""Ends a call of a bolt that never returns, and a process that a bolt has forked.

A call is ended by an exception in it, or else with its process. A thread looks at the call that
runs, and sends the process's first thread a signal, whose handler raises in the user's code. The
signal is one that nobody uses, so a bolt may have `SIGALRM` and the timers of its process for
itself. Where that does not help, the process ends: the thread ends it when the call goes on all the
same, in C code that signals do not interrupt or since a bolt has taken each signal there is; and a
timer in C ends it when C code keeps the thread from running, too.

A forked process is ended where it comes back to our code, as a child whose `exec` fails does. Else
two processes would go on with one task, and write the same files.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology.engine.task_output import UserCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.topology.engine.executor import Executor


_at_work: Final[list[UserCode]] = []
_SIGNAL: Final = getattr(signal, "SIGRTMAX", signal.SIGVTALRM)
_LOOKS: Final = 10
"""How often the watchdog looks, within the time that a call may take."""
_MOST_OFTEN_S: Final = 0.02
_LAST_RESORT: Final = 3
"""A call that even an exception does not end is ended with its process after so many times that."""
_LAST_RESORT_S: Final = 30.0
"""And not before: a machine that is short of time holds up the signal, too."""


@contextlib.contextmanager
def ending_overrun_calls(executor: Executor, timeout_s: float) -> Iterator[None]:
    """While the block runs, raise `BoltTimeoutError` in a call that has overrun.

    Only in the user's code, never in ours (`engine.environment`), and only in a process's first
    thread, which alone gets signals; in another one nothing is done. A call that this does not
    end is ended with its process, which costs a retry (`topology.surviving_tasks`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    users = executor.user_code

    def look(_signal: int, _frame: object) -> None:
        users.look(time.monotonic(), timeout_s)

    signal.signal(_SIGNAL, look)
    _at_work.append(users)
    is_over = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(users, look, timeout_s, is_over), name="watchdog", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()
        _at_work.remove(users)
        # A signal may still be on its way, and would end the process by default.
        signal.signal(_SIGNAL, signal.SIG_IGN)


def _watch(
    users: UserCode, look: Callable[..., Any], timeout_s: float, is_over: threading.Event
) -> None:
    """Have the first thread look at its call, and end the process if the call does not end."""
    first = threading.main_thread().ident
    look_s = max(_MOST_OFTEN_S, timeout_s / _LOOKS)
    last_resort_s = max(_LAST_RESORT_S, _LAST_RESORT * timeout_s) + look_s
    call, again, since_s = users.call, users.again, time.monotonic()
    try:
        while True:
            faulthandler.dump_traceback_later(last_resort_s, exit=True)
            if is_over.wait(look_s):
                return
            now_s = time.monotonic()
            if users.call is not call or users.again != again:
                call, again, since_s = users.call, users.again, now_s
            elif users.running is not None and now_s - since_s > last_resort_s:
                faulthandler.dump_traceback()
                os._exit(1)
            if first is not None and signal.getsignal(_SIGNAL) is look:
                signal.pthread_kill(first, _SIGNAL)
    finally:
        faulthandler.cancel_dump_traceback_later()


class _Forked(UserCode):
    """`UserCode` in a forked process; our code sets its attributes before all else."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        """End the process."""
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        line = "a process that a bolt has forked is ended: it came back from the bolt's call\n"
        os.write(2, line.encode())
        os._exit(1)


def _end_where_it_comes_back() -> None:
    for users in _at_work:
        users.__class__ = _Forked


os.register_at_fork(after_in_child=_end_where_it_comes_back)

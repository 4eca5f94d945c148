"""Tracks whether user code or engine code runs: only user code is ever interrupted.

A call that overruns is ended by an exception which a timer's signal raises in it. Python runs a
signal's handler between any two instructions of the first thread, so what the handler raises may
come out of any line. Out of a line of ours it would leave work half done: records taken from a list
and not yet written, an edge that is in no tree. So it is known at each moment whether the user's
code runs. What a bolt calls of ours in between (`emit`, `ack`, `fail`) is our code; a call that is
found to overrun there is ended on the way back to the bolt.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import BoltTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_DETAIL: Final = 16 << 10


class UserCode:
    """The call of user code that runs: of several that are in the middle, the last.

    A call overruns by its own time. While others run, it is left: that is found by looks, each of
    which counts the time since the one before for the call that it finds.
    """

    __slots__ = ("_left", "_looked_s", "_own_s", "_seen", "call", "overdue", "running")

    def __init__(self) -> None:
        self.call: Any = None
        self.running: Any = None
        self.overdue: Any = None
        self._seen: Any = None
        self._own_s = 0.0  # of the call that was seen last, since it was first seen
        self._looked_s = 0.0
        self._left: list[tuple[Any, float]] = []

    def look(self, now_s: float, timeout_s: float) -> None:
        """End the call if it overruns: at once in the user's code, else on the way back to it."""
        call, passed_s = self.call, now_s - self._looked_s
        self._looked_s = now_s
        if call is not self._seen:
            self._seen, self._own_s = call, 0.0
            return
        self._own_s += passed_s
        if call is not None and self._own_s >= timeout_s:
            if self.running is None:
                self.overdue = call
                return
            # A bolt that goes on all the same is interrupted again.
            self._own_s = 0.0
            raise BoltTimeoutError

    def leave(self) -> None:
        """Leave the call for others, which end before it goes on."""
        self._left.append((self.call, self._own_s if self._seen is self.call else 0.0))

    def come_back(self) -> None:
        """Come back to the call that was left last; our code runs still."""
        self.call, self._own_s = self._left.pop()
        self._seen, self.running = self.call, None

    def bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Bound a function of the user's by the time-out, also outside of a call of user code.

        Within such a call it is a part of it.
        """

        def call(*given: Any) -> Any:
            if self.running is not None:
                return function(*given)
            before = self.call
            self.call = self.running = object()
            try:
                return function(*given)
            finally:
                self.running, self.call = None, before

        return call

    def go_on(self, call: Any) -> None:
        """Return to user code after a call of ours: end its call if that overran meanwhile."""
        overdue, self.overdue = self.overdue, None
        self.running = call
        if call is not None and overdue is call:
            self._seen = None
            raise BoltTimeoutError


def finish_words(component: str, detail: str) -> str:
    """Say in an event's failure what a bolt's `finish_batch` raised."""
    return f"finish_batch of {component!r}: {detail}"[:LONGEST_DETAIL]


def detail_of(error: BaseException) -> str:
    """Return an exception as text, the frames of the executor left out."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "consumer/topology/" not in frame.filename]
    shown = traceback.format_list(own) + traceback.format_exception_only(error)
    return "".join(shown)[-LONGEST_DETAIL:]

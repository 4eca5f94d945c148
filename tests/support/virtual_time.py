"""An event loop of virtual time: where all wait, it goes on to the next timer."""

from __future__ import annotations

import asyncio
import functools
import selectors
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_P = ParamSpec("_P")


class _NoSelector(selectors.SelectSelector):
    """Never waits: time goes on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let so much time pass."""
        if timeout is None:
            raise RuntimeError("all wait, and for nothing that time brings")
        self.now_s += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time begins at an hour, and goes on only while all wait."""

    def __init__(self) -> None:
        self._virtual = _NoSelector()
        self._virtual.now_s = 3600.0
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def in_virtual_time(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run a test on such a loop: a time in it is exact, and costs none."""

    @functools.wraps(test)
    def run(*given: _P.args, **named: _P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*given, **named))

    return run

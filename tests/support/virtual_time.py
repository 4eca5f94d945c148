"""An event loop of virtual time: where all wait, it goes on to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


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

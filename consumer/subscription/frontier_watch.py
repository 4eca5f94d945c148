"""Which jobs get on: what one holds for its frontier counts for nobody's quota while that moves.

A frontier that stands still though there is something to read is that of a job that is down, or
hangs. Where all is read it waits for messages, and those would wait for the job if producers were
held for what it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE_S: Final = 60.0
"""A step may take long, and a job that is started again some time, too."""


class FrontierWatch:
    """Remembers since when frontiers stand still."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def standing(
        self, frontiers: Mapping[str, int], caught_up: frozenset[str], now_s: float
    ) -> frozenset[str]:
        """Return the jobs whose frontiers have stood still for too long."""
        self._known = {
            name: self._known[name]
            if name not in caught_up and self._known.get(name, (None,))[0] == frontier_ms
            else (frontier_ms, now_s)
            for name, frontier_ms in frontiers.items()
        }
        return frozenset(
            name for name, (_, since_s) in self._known.items() if now_s - since_s > PATIENCE_S
        )

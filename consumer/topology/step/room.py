"""How much memory the keys of a step may take, where the usual amount is too little to go on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sequitur.consumer.topology.step.run import StepResult

_logger: Final = logging.getLogger("sequitur.topology.memory")


class Room:
    """How many times the usual memory a step gets for the keys of keyed bolts.

    What a step has no memory for is left to the next one. Whatever waits for that is undone, and
    runs again. So the oldest that a step holds may be held by the next one, too. If no timers
    were called before it either, the step after that gets twice the memory. Once the oldest is
    finished, the next step gets half. New events may be finished meanwhile, which tells nothing.
    """

    def __init__(self) -> None:
        self.times = 1
        self._held_at: tuple[int, int] | None = None

    def take_in(self, result: StepResult) -> None:
        """Take in what a step did, whose result counts."""
        before, self._held_at = self._held_at, result.held_at
        if before is None or result.held_at is None or result.held_at > before:
            self.times = max(1, self.times // 2)
        elif not result.called_timers:
            self.times *= 2
            _logger.warning(
                "A step had too little memory for the keys of bolts to finish the oldest events "
                "that it held. The next one gets %d times the usual amount",
                self.times,
            )

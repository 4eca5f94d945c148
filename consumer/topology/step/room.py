"""How much memory the keys of a step may take, where the usual amount is too little to go on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sequitur.consumer.topology.step.run import StepResult

_logger: Final = logging.getLogger("sequitur.topology.memory")

_MOST_STEPS_OF_TIMERS: Final = 64
"""For so many steps the same event may be the oldest that is held, if timers were called."""


class Room:
    """How many times the usual memory a step gets for the keys of keyed bolts.

    What a step has no memory for is left to the next one. Whatever waits for that is undone, and
    runs again. So the oldest that a step holds may be held by the next one, too. The step after
    that gets twice the memory. New events may be finished meanwhile, which tells nothing. Timers
    may come before the oldest, and take several steps, but they may also be new ones: if some
    were called, it takes more steps to get twice the memory. Once the oldest was another one in
    two steps, the next one gets half.
    """

    def __init__(self) -> None:
        self.times = 1
        self._held_at: tuple[int, int] | None = None
        # how many steps in a row had another oldest, and how many the same one, but called timers
        self._advances = 0
        self._steps_of_timers = 0

    def take_in(self, result: StepResult) -> None:
        """Take in what a step did, whose result counts."""
        before, self._held_at = self._held_at, result.held_at
        if before is None or result.held_at is None or result.held_at > before:
            self._advances, self._steps_of_timers = self._advances + 1, 0
            if self._advances > 1:
                self.times = max(1, self.times // 2)
            return
        self._advances = 0
        if result.called_timers and self._steps_of_timers < _MOST_STEPS_OF_TIMERS:
            self._steps_of_timers += 1
            return
        self._steps_of_timers = 0
        self.times *= 2
        _logger.warning(
            "A step had too little memory for the keys of bolts to finish the oldest events that "
            "it held. The next one gets %d times the usual amount",
            self.times,
        )

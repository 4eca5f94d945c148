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
    runs again. So a step may have finished nothing in the end, and the next one would do the same.
    That gets twice the memory. Once a step has finished something, the next one gets half.
    """

    def __init__(self) -> None:
        self.times = 1

    def take_in(self, result: StepResult) -> None:
        """Take in what a step did, whose result counts."""
        if not result.is_stuck:
            self.times = max(1, self.times // 2)
            return
        self.times *= 2
        _logger.warning(
            "A step had too little memory for the keys of bolts to finish anything. The next one "
            "gets %d times the usual amount",
            self.times,
        )

"""TransactionalWords on the events of the benchmarks: the key of each is a word."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from examples.transactional_words import CountPart, build

if TYPE_CHECKING:
    from sequitur import Tuple


class CountKeys(CountPart):
    """How often each key is in a task's part of a batch."""

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Count a key."""
        self.counts[tuple["key"].decode()] += 1


topology = build(os.environ["STATE_URL"], part=CountKeys())

"""What the journal is told of a partition, and what waits until it knows."""

from __future__ import annotations

from typing import Any

from sequitur.kafka.identity import Identity
from sequitur.producer.delivery.journaling import JournalUpdates
from sequitur.producer.delivery.sequencer import Sequencer


class _Queue:
    def __init__(self) -> None:
        self.sequencer: Sequencer[str] = Sequencer(Identity(7, 0), confirmed=True)


async def test_renumbered_batches_are_not_sent_before_the_journal_knows_of_it() -> None:
    """A life that died then would be followed by one that sends them under the old numbers."""
    identities: Any = None
    queue: Any = _Queue()
    slot = queue.sequencer.admit("batch", 1)
    assert queue.sequencer.next_to_send() is slot
    due: list[str] = []
    updates = JournalUpdates(identities, lambda: due.append("a round"))
    updates.renewed(queue)
    assert queue.sequencer.next_to_send() is None
    assert updates.is_due
    assert due == ["a round"]

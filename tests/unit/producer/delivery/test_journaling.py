"""What the journal is told of a partition, and what waits until it knows."""

from __future__ import annotations

from typing import Any

import pytest

from sequitur.kafka.identity import Identity
from sequitur.producer.delivery.journaling import JournalUpdates, Mark, Round
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


_ONE: Any = object()


@pytest.mark.parametrize(
    ("of", "must_last"),
    [
        ({"is_cut": True}, True),
        ({"fresh": [_ONE]}, True),
        ({"waiting": [_ONE]}, True),
        ({"numbered": [_ONE]}, True),
        ({"redated": [_ONE]}, True),
        ({"renewed": [_ONE]}, True),
        ({"marks": [Mark(_ONE, offset=5), Mark(_ONE, reason="too old")]}, True),
        ({"marks": [Mark(_ONE, offset=5)]}, False),
        ({}, False),
    ],
    ids=lambda of: next(iter(of), "nothing") if isinstance(of, dict) else None,
)
def test_a_round_is_synced_if_something_waits_for_it(of: dict[str, Any], must_last: bool) -> None:
    """Senders, batches on hold, who hears what was given up. A lost ack is asked for again."""
    assert Round(1, **of).must_last == must_last

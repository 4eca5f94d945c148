"""Sequencers as tests find them: with batches sent, in doubt, or left by a former life."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from sequitur.kafka.error_codes import Answer
from sequitur.kafka.identity import Identity
from sequitur.producer.delivery.sequencer import Sequencer

if TYPE_CHECKING:
    from sequitur.producer.delivery.sequencer import Slot

ID = Identity(1, 0)
NEXT = Identity(1, 1)


def confirmed_sequencer(*, next_sequence: int = 0) -> Sequencer[str]:
    """A sequencer whose identity the broker knows: the whole window may be in flight."""
    return Sequencer(ID, next_sequence=next_sequence, confirmed=True)


def send(sequencer: Sequencer[str], *names: str) -> list[Slot[str]]:
    """Admit batches of ten numbers each, and send them."""
    slots = []
    for name in names:
        slot = sequencer.admit(name, 10)
        sequencer.sent(slot)
        slots.append(slot)
    return slots


def wants(sequencer: Sequencer[str]) -> str:
    """What is due before anything is sent: "query", "renewal" or nothing."""
    assert not (sequencer.query_due and sequencer.renewal_due)
    return "query" if sequencer.query_due else "renewal" if sequencer.renewal_due else ""


def has_room(sequencer: Sequencer[str]) -> bool:
    """Whether a new batch would be sent at once, and overtake nothing."""
    probed = copy.deepcopy(sequencer)
    return probed.admit("probe", 1) is probed.next_to_send()


def in_doubt(sequencer: Sequencer[str], *names: str) -> list[Slot[str]]:
    """Batches whose answers were lost, the first of which then met a broken order."""
    slots = send(sequencer, *names)
    for slot in slots:
        sequencer.on_answer(slot, Answer.UNKNOWN)
    sequencer.sent(slots[0])
    sequencer.on_answer(slots[0], Answer.OUT_OF_ORDER)
    assert wants(sequencer) == "query"
    return slots


def recovered(*names: str) -> tuple[Sequencer[str], list[Slot[str]]]:
    """A producer that goes on under the identity of its former life, and what that left."""
    sequencer: Sequencer[str] = Sequencer(ID, next_sequence=10 * len(names))
    return sequencer, [sequencer.recover(n, 10, 10 * i, ID) for i, n in enumerate(names)]


def in_a_next_life(*names: str) -> tuple[Sequencer[str], list[Slot[str]]]:
    """A producer under `NEXT`, and what its former life under `ID` left."""
    sequencer: Sequencer[str] = Sequencer(NEXT)
    return sequencer, [sequencer.recover(n, 10, 10 * i, ID) for i, n in enumerate(names)]

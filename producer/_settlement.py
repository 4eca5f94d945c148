"""Telling what became of the events of a batch: to their owners, to the counts, to the buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producer._outcomes import NotPersisted, PossiblyPersisted
from producer._sequencer import State, Verdict

if TYPE_CHECKING:
    from producer._accumulator import Accumulator
    from producer._durability import Journal
    from producer._lane import Batch, Lane
    from producer._statistics import Counters


class Settlement:
    """The end of every batch's way.

    Args:
        accumulator: Holds the batches.
        counters: Count the events.
        journal: Need not keep what is settled.
    """

    def __init__(self, accumulator: Accumulator, counters: Counters, journal: Journal) -> None:
        self._accumulator = accumulator
        self._journal = journal
        self._counters = counters

    def persisted(self, batch: Batch, base_offset: int | None) -> None:
        """The batch is in the log."""
        if not batch.told:
            offset = base_offset
            for claim in batch.claims:
                claim.persisted(batch.partition, offset)
                if offset is not None:
                    offset += len(claim.entries)
            self._counters.persisted += batch.count
            self._accumulator.told(batch)
        self._accumulator.release(batch)
        self._journal.persisted(batch, base_offset)

    def failed(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        """The batch is given up."""
        self.tell(batch, outcome)
        self._accumulator.release(batch)
        self._journal.failed(batch, outcome)

    def tell(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        """Tell the outcome, and keep the batch: it may still be on its way."""
        if batch.told:
            return
        for claim in batch.claims:
            claim.failed(outcome)
        if isinstance(outcome, NotPersisted):
            self._counters.not_persisted += batch.count
        else:
            self._counters.possibly_persisted += batch.count
        self._accumulator.told(batch)

    def dropped(self, batch: Batch, verdict: Verdict, reason: str) -> None:
        """The batch was dropped from its sequencer."""
        lost = verdict is Verdict.LOST
        self.failed(batch, PossiblyPersisted(reason) if lost else NotPersisted(reason))

    def expire(self, lane: Lane, accepted_until_s: float, grace_s: float) -> None:
        """Tell of everything in a lane that was accepted until then: its time is over.

        What has no number yet, or surely did not arrive, is dropped. What may have arrived is told
        as such, `grace_s` later, and still tried: only the broker's answer says which number is
        next.
        """
        trouble = lane.trouble or "it was never its turn"
        while lane.sealed and lane.sealed[0].accepted_at_s <= accepted_until_s:
            reason = f"not sent within delivery_timeout: {trouble}"
            self.failed(lane.sealed.popleft(), NotPersisted(reason))
        if (
            not lane.sealed
            and lane.open is not None
            and lane.open.accepted_at_s <= accepted_until_s
        ):
            lane.seal()
            reason = f"not sent within delivery_timeout: {trouble}"
            self.failed(lane.sealed.popleft(), NotPersisted(reason))
        for slot in list(lane.sequencer.slots):
            batch = slot.batch
            if batch.accepted_at_s > accepted_until_s:
                continue
            reason = f"no answer within delivery_timeout: {trouble}"
            if slot.state is State.READY and not slot.maybe:
                self.dropped(batch, lane.sequencer.drop(slot), reason)
            elif batch.accepted_at_s <= accepted_until_s - grace_s:
                self.tell(batch, PossiblyPersisted(reason))

    def abandon(self, lane: Lane, reason: str) -> None:
        """Tell of everything in a lane: nothing will be sent any more."""
        lane.seal()
        while lane.sealed:
            self.failed(lane.sealed.popleft(), NotPersisted(f"{reason} before it was sent"))
        for slot in lane.sequencer.slots:
            if slot.state is State.WAITING or slot.maybe:
                self.failed(slot.batch, PossiblyPersisted(f"{reason} before it was answered"))
            else:
                self.failed(slot.batch, NotPersisted(f"{reason} before it was taken"))
        lane.sequencer.slots.clear()

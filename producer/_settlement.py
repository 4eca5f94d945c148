"""Telling what became of the events of a batch: to their owners, to the counts, to the buffer."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from producer._given_up import events_of
from producer._log import Logger
from producer._outcomes import NotPersisted, PossiblyPersisted
from producer._slot import State, Verdict

if TYPE_CHECKING:
    from producer._accumulator import Accumulator
    from producer._given_up import OnGivenUp
    from producer._lane import Batch, Lane
    from producer._rounds import Rounds
    from producer._statistics import Counters

_log = Logger(__name__)


class Settlement:
    """The end of every batch's way.

    Args:
        accumulator: Holds the batches.
        counters: Count the events.
        rounds: The journal need not keep what is settled.
        on_given_up: Called with the events of a batch that is given up, while the journal still has
            them; None if nobody wants them.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        counters: Counters,
        rounds: Rounds,
        on_given_up: OnGivenUp | None = None,
    ) -> None:
        self._accumulator = accumulator
        self._rounds = rounds
        self._counters = counters
        self._on_given_up = on_given_up

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
        self._rounds.mark(batch, offset=base_offset)

    def failed(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        """The batch is given up; told once no journal can bring it back."""
        if self._on_given_up is not None:
            try:
                self._on_given_up(events_of(batch, outcome))
            except Exception as error:
                kept = "; the journal keeps it for the next start" if batch.journaled else ""
                why = f"{outcome.reason}, and then {error}{kept}"
                self.tell(batch, PossiblyPersisted(why))
                self._accumulator.release(batch)
                raise
        self._forget(batch, outcome)

    def _forget(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        def end() -> None:
            self.tell(batch, outcome)
            self._accumulator.release(batch)

        batch.given_up = True
        if not batch.claims:
            _log.warning(
                "events of the journal were given up",
                topic=batch.topic,
                partition=batch.partition,
                events=batch.count,
                outcome=type(outcome).__name__,
                reason=outcome.reason,
            )
        self._rounds.mark(batch, reason=outcome.reason, then=end)

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
        due = list(takewhile(lambda s: s.batch.accepted_at_s <= accepted_until_s, lane.sequencer))
        for slot in due:
            batch = slot.batch
            reason = f"no answer within delivery_timeout: {trouble}"
            if slot.state is State.READY and not slot.maybe:
                self.dropped(batch, lane.sequencer.drop(slot), reason)
            elif batch.accepted_at_s <= accepted_until_s - grace_s:
                self.tell(batch, PossiblyPersisted(reason))

    def abandon(self, lane: Lane, reason: str) -> None:
        """Tell of everything in a lane: nothing will be sent any more, in this life.

        Nothing of it was refused, so it is not given up: whoever closes too early hears of it.
        """
        for batch in lane.cut():
            self._forget(batch, NotPersisted(f"{reason} before it was sent"))
        for slot in lane.sequencer:
            batch = slot.batch
            if batch.journaled is not None:
                why = f"{reason} before it was answered; the journal keeps it for the next start"
                self.tell(batch, PossiblyPersisted(why))
                self._accumulator.release(batch)
            elif slot.state is State.WAITING or slot.maybe:
                self._forget(batch, PossiblyPersisted(f"{reason} before it was answered"))
            else:
                self._forget(batch, NotPersisted(f"{reason} before it was taken"))
        lane.sequencer.clear()

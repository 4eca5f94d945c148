"""The end of every batch: outcomes for its events, counts, and memory given back."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from sequitur.producer._given_up import events_of
from sequitur.producer._log import Logger
from sequitur.producer._outcomes import NotPersisted, PossiblyPersisted
from sequitur.producer.delivery.slots import State, Verdict

if TYPE_CHECKING:
    from sequitur.producer._given_up import OnGivenUp
    from sequitur.producer._statistics import Counters
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.outstanding import Outstanding
    from sequitur.producer.delivery.rounds import Rounds
    from sequitur.producer.delivery.send_queue import SendQueue

_log = Logger(__name__)


class Settlement:
    """Settle batches.

    Args:
        outstanding: Holds the batches.
        counters: Count the events.
        rounds: Tell the journal that it need not keep what is settled.
        on_given_up: Called with the events of a batch that is given up, while the journal still has
            them; None if nobody wants them.
    """

    def __init__(
        self,
        outstanding: Outstanding,
        counters: Counters,
        rounds: Rounds,
        on_given_up: OnGivenUp | None = None,
    ) -> None:
        self._outstanding = outstanding
        self._rounds = rounds
        self._counters = counters
        self._on_given_up = on_given_up

    def persisted(self, batch: Batch, base_offset: int | None) -> None:
        """Settle a batch that is in the log."""
        if not batch.completed:
            offset = base_offset
            for claim in batch.claims:
                claim.persisted(batch.partition, offset)
                if offset is not None:
                    offset += len(claim.entries)
            self._counters.persisted += batch.count
            self._outstanding.complete(batch)
        self._outstanding.release(batch)
        self._rounds.mark(batch, offset=base_offset)

    def failed(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        """Give a batch up; its events have their outcome once no journal can bring it back."""
        if self._on_given_up is not None:
            try:
                if self._rounds.spill is not None:
                    self._rounds.spill.read_now(batch)
                self._on_given_up(events_of(batch, outcome))
            except Exception as error:
                kept = "; the journal keeps it for the next start" if batch.in_journal else ""
                why = f"{outcome.reason}, and then {error}{kept}"
                self.complete(batch, PossiblyPersisted(why))
                self._outstanding.release(batch)
                raise
        self._forget(batch, outcome)

    def _forget(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        def end() -> None:
            self.complete(batch, outcome)
            self._outstanding.release(batch)

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

    def complete(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        """Give the events of a batch their outcome, and keep the batch: it may be in flight."""
        if batch.completed:
            return
        for claim in batch.claims:
            claim.failed(outcome)
        if isinstance(outcome, NotPersisted):
            self._counters.not_persisted += batch.count
        else:
            self._counters.possibly_persisted += batch.count
        self._outstanding.complete(batch)

    def dropped(self, batch: Batch, verdict: Verdict, reason: str) -> None:
        """Settle a batch that was dropped from its sequencer."""
        lost = verdict is Verdict.LOST
        self.failed(batch, PossiblyPersisted(reason) if lost else NotPersisted(reason))

    def expire(self, queue: SendQueue, accepted_until_s: float, grace_s: float) -> None:
        """Settle everything of a partition that was accepted until then: its time is over.

        What has no numbers yet, or is surely not in the log, is dropped. What may be in the log is
        completed as such `grace_s` later, and still sent: only the broker's answer says which
        number is next.
        """
        trouble = queue.trouble or "it was never its turn"
        while (batch := queue.pop_unnumbered(accepted_until_s)) is not None:
            self.failed(batch, NotPersisted(f"not sent within delivery_timeout: {trouble}"))
        due = list(takewhile(lambda s: s.batch.accepted_at_s <= accepted_until_s, queue.sequencer))
        for slot in due:
            batch = slot.batch
            reason = f"no answer within delivery_timeout: {trouble}"
            if slot.state is State.READY and not slot.possibly_appended:
                self.dropped(batch, queue.sequencer.drop(slot), reason)
            elif batch.accepted_at_s <= accepted_until_s - grace_s:
                self.complete(batch, PossiblyPersisted(reason))

    def give_up(self, queue: SendQueue, reason: str) -> None:
        """Give up everything of a partition, and keep nothing of it: the partition is gone."""
        failed: list[tuple[Batch, NotPersisted | PossiblyPersisted]] = []
        for slot in queue.sequencer:
            if slot.state is State.WAITING or slot.possibly_appended:
                sent = PossiblyPersisted(f"{reason} before it was answered")
                failed.append((slot.batch, sent))
            else:
                failed.append((slot.batch, NotPersisted(f"{reason} before it was accepted")))
        queue.sequencer.clear()
        while (batch := queue.pop_unnumbered()) is not None:
            failed.append((batch, NotPersisted(f"{reason} before it was sent")))
        queue.resolve_inherited(())
        errors = []
        for batch, outcome in failed:
            try:
                self.failed(batch, outcome)
            except Exception as error:  # noqa: BLE001 - the producer fails, once all are completed
                errors.append(error)
        if errors:
            raise errors[0]

    def abandon(self, queue: SendQueue, reason: str) -> None:
        """Complete everything of a partition: nothing more is sent in this life.

        No broker has refused any of it, so it is not given up: `on_given_up` does not get it.
        """
        while (batch := queue.pop_unnumbered()) is not None:
            if batch.waits:
                self._leave(batch, f"{reason} before it was sent")
            else:
                self._forget(batch, NotPersisted(f"{reason} before it was sent"))
        for slot in queue.sequencer:
            batch = slot.batch
            if batch.in_journal:
                self._leave(batch, f"{reason} before it was answered")
            elif slot.state is State.WAITING or slot.possibly_appended:
                self._forget(batch, PossiblyPersisted(f"{reason} before it was answered"))
            else:
                self._forget(batch, NotPersisted(f"{reason} before it was accepted"))
        queue.sequencer.clear()

    def _leave(self, batch: Batch, reason: str) -> None:
        """Leave a batch to the next start."""
        why = f"{reason}; the journal keeps it for the next start"
        self.complete(batch, PossiblyPersisted(why))
        self._outstanding.release(batch)

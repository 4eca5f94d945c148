"""The end of every batch: outcomes for its events, counts, and memory given back.

`on_given_up` and the user's `on_failure` (by `Unawaited`) get whole events. If the bytes of a
batch are only in the journal, they are read back for that. While too many files are open, they
cannot be read. Then the batch stays where it is, so that nothing overtakes it. It is given up as
soon as it can be read.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from sequitur.base.log import Logger
from sequitur.producer._claims import LogPlace
from sequitur.producer._outcome import NotPersisted, PossiblyPersisted, events_of
from sequitur.producer.delivery.sequencer import State, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.producer._outcome import OnGivenUp
    from sequitur.producer._running import Counters
    from sequitur.producer._unheard import Unawaited, Unheard
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.budget import Outstanding
    from sequitur.producer.delivery.rounds import RoundMaker
    from sequitur.producer.delivery.send_queues import SendQueue

_log = Logger(__name__)


class Settlement:
    """Settle batches."""

    def __init__(
        self,
        outstanding: Outstanding,
        counters: Counters,
        rounds: RoundMaker,
        on_failure: Callable[[Exception], None],
        on_given_up: OnGivenUp | None = None,
        *,
        unheard: Unheard | None = None,
        unawaited: Unawaited | None = None,
    ) -> None:
        self._unheard = unheard
        self._unawaited = unawaited
        self._outstanding = outstanding
        self._rounds = rounds
        self._counters = counters
        self._on_failure = on_failure
        self._on_given_up = on_given_up
        # Batches of partitions that are gone, whose bytes cannot be read yet.
        self._unread: dict[Batch, NotPersisted | PossiblyPersisted] = {}

    def persisted(
        self, batch: Batch, base_offset: int | None, append_ms: int | None = None
    ) -> None:
        if not batch.completed and batch.claims:
            at = LogPlace(
                batch.topic,
                batch.partition,
                base_offset,
                shift_ms=batch.shift_ms,
                append_ms=-1 if append_ms is None else append_ms,
                keeps_times=append_ms is not None,
            )
            first = 0
            for claim in batch.claims:
                claim.persisted(at, first)
                first += len(claim.entries)
        if not batch.completed:
            self._counters.persisted += batch.count
            self._outstanding.complete(batch)
        self._outstanding.release(batch)
        batch.end()
        self._rounds.mark(batch, offset=base_offset)

    def failed(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        """Give a batch up; its events have their outcome once no journal can bring it back.

        A batch that cannot be read now is given up by a later `fail_unread`.
        """
        if self._is_wanted(batch):
            try:
                if not self._read(batch):
                    self._unread[batch] = outcome
                    return
                batch.end()
                if self._on_given_up is not None:
                    self._on_given_up(events_of(batch, outcome))
            except Exception as error:
                kept = "; the journal keeps it for the next start" if batch.may_return else ""
                why = f"{outcome.reason}, and then {error}{kept}"
                batch.end()
                self.complete(batch, PossiblyPersisted(why), is_left=batch.may_return)
                self._outstanding.release(batch)
                self._on_failure(error)
                raise
        self._forget(batch, outcome, is_told=self._on_given_up is not None)

    def fail_unread(self) -> None:
        """Give up what could not be read when it was to be given up."""
        for batch in list(self._unread):
            self.failed(batch, self._unread.pop(batch))

    def _is_at_hand(self, batch: Batch) -> bool:
        """Return whether a batch can be given up now; read its bytes back if they are wanted."""
        return not self._is_wanted(batch) or self._read(batch)

    def _is_wanted(self, batch: Batch) -> bool:
        """Return whether a callback gets the events: the journal has none after the mark."""
        by_sender = self._unawaited is not None and self._unawaited.wants(batch)
        return self._on_given_up is not None or by_sender

    def _read(self, batch: Batch) -> bool:
        spill = self._rounds.spill
        return spill is None or spill.read_now(batch)

    def _forget(
        self, batch: Batch, outcome: NotPersisted | PossiblyPersisted, *, is_told: bool = False
    ) -> None:
        def end(is_forgotten: bool) -> None:
            told = outcome
            if not is_forgotten:
                why = f"{outcome.reason}; the journal may keep it for the next start"
                told = PossiblyPersisted(why)
            self.complete(batch, told, is_told=is_told)
            self._outstanding.release(batch)

        batch.end()
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

    def complete(
        self,
        batch: Batch,
        outcome: NotPersisted | PossiblyPersisted,
        *,
        is_told: bool = False,
        is_left: bool = False,
    ) -> None:
        """Give the events of a batch their outcome, and keep the batch: it may be in flight.

        Args:
            batch: The batch.
            outcome: The outcome of all of its events.
            is_told: Whether `on_given_up` got the events: then nobody else is told.
            is_left: Whether the batch is left to the journal, for this life or the next. Then no
                callback gets its events until it is given up after all.
        """
        if batch.completed and (is_left or not batch.left):
            return
        if self._unawaited is not None and not is_told:
            if is_left and isinstance(outcome, PossiblyPersisted):
                self._unawaited.left(batch, outcome)
            else:
                self._unawaited.failed(batch, outcome, self._read)
        batch.left = is_left
        if batch.completed:
            return
        is_for_the_next_life = is_left and self._on_given_up is not None
        unheard = None if is_told or is_for_the_next_life else self._unheard
        for claim in batch.claims:
            claim.failed(outcome, batch.topic, unheard)
        if isinstance(outcome, NotPersisted):
            self._counters.not_persisted += batch.count
        else:
            self._counters.possibly_persisted += batch.count
        self._outstanding.complete(batch)

    def dropped(self, batch: Batch, verdict: Verdict, reason: str) -> None:
        lost = verdict is Verdict.LOST
        self.failed(batch, PossiblyPersisted(reason) if lost else NotPersisted(reason))

    def expire(self, queue: SendQueue, accepted_until_s: float, grace_s: float) -> None:
        """Settle everything of a partition that was accepted until then: its time is over.

        - A batch that has no numbers yet, or is surely not in the log, is dropped.
        - A batch that may be in the log is completed as such `grace_s` later, and still sent: only
          the broker's answer says which number is next.
        - A batch that a callback wants and that cannot be read now stays where it is. It is sent if
          it can be, or given up by another call.
        """
        trouble = queue.trouble or "it was never its turn"
        while (batch := self._pop_due(queue, accepted_until_s)) is not None:
            self.failed(batch, NotPersisted(f"not sent within delivery_timeout: {trouble}"))
        due = list(takewhile(lambda s: s.batch.accepted_at_s <= accepted_until_s, queue.sequencer))
        for slot in due:
            batch = slot.batch
            reason = f"no answer within delivery_timeout: {trouble}"
            if slot.state is State.READY and not slot.possibly_appended:
                if self._is_at_hand(batch):
                    self.dropped(batch, queue.sequencer.drop(slot), reason)
            elif batch.accepted_at_s <= accepted_until_s - grace_s:
                self.complete(batch, PossiblyPersisted(reason), is_left=batch.may_return)

    def _pop_due(self, queue: SendQueue, accepted_until_s: float) -> Batch | None:
        """Take out the oldest batch without numbers, if its time is over and it is at hand."""
        first = queue.first_waiting
        if first is not None and first.accepted_at_s <= accepted_until_s:
            return queue.pop_unnumbered() if self._is_at_hand(first) else None
        return queue.pop_unnumbered(accepted_until_s)

    def give_up(self, queue: SendQueue, reason: str) -> None:
        """Give up everything of a partition, and keep nothing of it: the partition is gone."""
        failed: list[tuple[Batch, NotPersisted | PossiblyPersisted]] = []
        for slot in queue.sequencer:
            if slot.state is State.IN_FLIGHT or slot.possibly_appended:
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
            if batch not in self._outstanding.batches:
                continue  # the producer has failed, and left it to the next start
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
            if batch.may_return:
                self._leave(batch, f"{reason} before it was sent")
            else:
                self._forget(batch, NotPersisted(f"{reason} before it was sent"))
        for slot in queue.sequencer:
            batch = slot.batch
            if batch.may_return:
                self._leave(batch, f"{reason} before it was answered")
            elif slot.state is State.IN_FLIGHT or slot.possibly_appended:
                self._forget(batch, PossiblyPersisted(f"{reason} before it was answered"))
            else:
                self._forget(batch, NotPersisted(f"{reason} before it was accepted"))
        queue.sequencer.clear()

    def abandon_rest(self, reason: str) -> None:
        """Complete what no partition holds, as `abandon` does: no event may wait for ever.

        Such a batch could not be read when it was to be given up, or a defect ended the task that
        settled it.
        """
        self._unread.clear()
        for batch in [batch for batch in self._outstanding.batches if not batch.ended]:
            if batch.may_return:
                self._leave(batch, f"{reason} before it was settled")
            else:
                self._forget(batch, PossiblyPersisted(f"{reason} before it was settled"))

    def _leave(self, batch: Batch, reason: str) -> None:
        is_kept = self._rounds.has_all
        keeps = "keeps" if is_kept else "may keep"
        why = f"{reason}; the journal {keeps} it for the next start"
        self.complete(batch, PossiblyPersisted(why), is_left=is_kept)
        self._outstanding.release(batch)

"""What the journal has to be told of batches that it holds: how they ended, and renewals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sequitur.producer.delivery.round import (
    Mark,
    frames_of_marks,
    frames_of_numbers,
    renewal,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.round import Round, SlotStamp
    from sequitur.producer.delivery.send_queue import SendQueue
    from sequitur.producer.delivery.slots import Slot
    from sequitur.producer.journal.frames import Frame

_MARKS_WAIT_S: Final = 0.05


class JournalUpdates:
    """Collect marks and renewals for the next round.

    A mark says how a batch ended; it may wait a little, for others. A renewal says under which
    identity and numbers a partition goes on; its batches are held until it is durable.
    """

    def __init__(self, identities: Identities, on_due: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._identities = identities
        self._on_due = on_due
        self._marks: list[Mark] = []
        self._after: dict[Batch, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._marks_due = False
        self._renewed: dict[SendQueue, None] = {}
        # The batches of parts whose last is not in the journal yet, and whether the parts have all
        # of a batch.
        self._parts: dict[Batch, bool] = {}

    @property
    def is_due(self) -> bool:
        """Whether to make a round for it."""
        return bool(self._renewed) or self._marks_due

    def mark(self, mark: Mark, then: Callable[[], None] | None) -> None:
        """Tell the journal how a batch ended, and then call `then`."""
        self._marks.append(mark)
        if then is not None:
            self._after[mark.batch] = then
            self._flush_marks()
        elif self._timer is None:
            self._timer = self._loop.call_later(_MARKS_WAIT_S, self._flush_marks)

    def renewed(self, queue: SendQueue) -> None:
        """Tell the journal of a partition's identity, and hold its batches until it is durable."""
        for slot in queue.sequencer:
            slot.held = True
        # The order of the latest renewals is the order of their identities.
        self._renewed.pop(queue, None)
        self._renewed[queue] = None
        self._on_due()

    def begin_parts(self, parts: dict[Batch, bool]) -> None:
        """Take note of the batches of a round in parts, and whether the parts have all of each."""
        self._parts = parts

    def end_parts(self) -> list[Batch]:
        """Take note that the last part is in the journal; return the batches that it has whole."""
        parts, self._parts = self._parts, {}
        self._marks_due |= any(mark.batch in parts for mark in self._marks)
        # One that grows gets no number yet: the journal would keep what is added as another.
        return [batch for batch, is_whole in parts.items() if is_whole]

    def fill(
        self, round_: Round, numbered: list[SlotStamp], redated: list[SlotStamp]
    ) -> list[tuple[SendQueue, Slot[Batch]]]:
        """Put all marks and renewals into a round, and what batches got since they were written."""
        # A batch of a part can be given up only after the last part: that would bring it back.
        round_.marks = [mark for mark in self._marks if mark.batch not in self._parts]
        self._marks = [mark for mark in self._marks if mark.batch in self._parts]
        round_.renewed, self._renewed = list(self._renewed), {}
        self._marks_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in round_.renewed:
            round_.halved += [(queue, batch) for batch in queue.take_halved()]
        round_.frames = frames_of_marks(
            [*round_.marks, *(Mark(batch, reason="halved") for _, batch in round_.halved)]
        )
        # Under the numbers that the journal knows: before a renewal gives them others.
        round_.redated = redated
        known = [(q, s, s.batch.journaled) for q, s, _ in redated if s.batch.journaled is not None]
        round_.frames += frames_of_numbers(known)
        halves: list[tuple[SendQueue, Slot[Batch]]] = []
        for queue in round_.renewed:
            round_.frames.append(renewal(queue, round_, self._identities.cluster_id))
            halves += [
                (queue, slot)
                for slot in queue.sequencer.slots
                if slot.batch.journaled is None and not slot.batch.waits
            ]
        round_.numbered = numbered
        round_.frames += frames_of_numbers(numbered)
        return halves

    def take_back(self, round_: Round) -> None:
        """Take back the marks and renewals of a round: the journal had no space."""
        self._marks[:0] = round_.marks
        self._renewed = dict.fromkeys([*round_.renewed, *self._renewed])
        for (_queue, slot, _stamp), before in zip(round_.restamped, round_.before, strict=True):
            slot.batch.journaled = before
        round_.restamped, round_.before = [], []
        for queue, batch in round_.halved:
            queue.return_halved(batch)
        round_.halved = []

    def on_durable(self, round_: Round) -> None:
        """Call what was to be called once the marks of a round are durable."""
        for mark in round_.marks:
            then = self._after.pop(mark.batch, None)
            if then is not None:
                then()

    def stop(self) -> list[Frame]:
        """Cancel the timer, and return the frames of the marks that are left."""
        if self._timer is not None:
            self._timer.cancel()
        return frames_of_marks(self._marks)

    def end(self) -> None:
        """Call all that was to be called once marks are durable: none will be any more."""
        for then in self._after.values():
            then()
        self._after.clear()

    def _flush_marks(self) -> None:
        self._marks_due = bool(self._marks)
        self._on_due()

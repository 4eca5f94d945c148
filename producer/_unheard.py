"""Bad outcomes that nobody looks at: they are counted, and logged by topic and reason.

An outcome is a value. Code that was written for a client that raises may never look at it. So the
producer logs what is gone without a look. That costs good outcomes nothing: only a delivery that
failed while nobody waited for it becomes one that tells when it goes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

from sequitur.base.log import Logger
from sequitur.errors import NotAllPersistedError
from sequitur.producer._claims import ENDS_THE_PROGRAM, TicketClaim
from sequitur.producer._outcome import (
    Delivery,
    GivenUp,
    NotPersisted,
    OnSendFailure,
    Outcome,
    PossiblyPersisted,
    Ticket,
    events_of,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Sequence

    from sequitur.producer.batching.batch import Batch

_EVERY_S: Final = 60.0
_MAX_REASONS: Final = 100
_OTHER: Final = "other reasons"
_log = Logger(__name__)


class Unheard:
    """Count bad outcomes that nobody asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, every_s: float = _EVERY_S) -> None:
        self.count = 0
        self._loop = loop
        self._every_s = every_s
        self._untold: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, delivery: Delivery, topic: str) -> None:
        """Count a delivery that has just failed, if it goes without a look."""
        delivery.on_unheard = lambda reason: self.note(topic, reason)
        delivery.__class__ = _FailedDelivery

    def note(self, topic: str, reason: str, events: int = 1) -> None:
        """Count events of a topic that failed for a reason."""
        key = (topic, reason)
        if key not in self._untold and len(self._untold) >= _MAX_REASONS:
            key = (topic, _OTHER)
        self._untold[key] += events
        self.count += events
        if self._timer is None and not self._loop.is_closed():
            self._timer = self._loop.call_later(self._every_s, self.tell)

    def tell(self) -> None:
        """Log what was counted since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (topic, reason), events in self._untold.items():
            _log.warning(
                "events are not, or not surely, in the log, and nobody asked for their outcome",
                topic=topic,
                reason=reason,
                events=events,
            )
        self._untold.clear()


class _FailedDelivery(Delivery):
    """A delivery that failed while nobody waited for it."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Outcome]:
        self._hear()
        return Delivery.__await__(self)

    def result(self) -> Outcome:
        self._hear()
        return Delivery.result(self)

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Any = None) -> None:
        """Call `fn` soon."""
        self._hear()
        Delivery.add_done_callback(self, fn, context=context)

    def _hear(self) -> None:
        self.__class__ = Delivery  # type: ignore[assignment]  # it has no more slots than that

    def __del__(self) -> None:
        outcome = cast("NotPersisted | PossiblyPersisted", super().result())
        self.on_unheard(outcome.reason)


class Unawaited(Ticket):
    """The events of `send_nowait` without `on_delivery`; `untold` of them are lost unseen so far.

    Events that end badly go to `on_failure`. Without it they are counted, and logged every second.
    """

    __slots__ = ("_on_failure", "_told", "untold")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_failure: OnSendFailure | None = None
    ) -> None:
        super().__init__()
        self.open(loop)
        self.untold = 0
        self._on_failure = on_failure
        self._told = Unheard(loop, every_s=1.0)

    def watch(
        self,
        events: int,
        outcome: NotPersisted | PossiblyPersisted,
        topic: str,
        unheard: Unheard | None,
    ) -> None:
        """Do nothing: `Settlement` calls `failed` instead, if nobody else was told."""

    def wants(self, batch: Batch) -> bool:
        """Return whether `on_failure` gets events of a batch if it ends badly."""
        return self._on_failure is not None and bool(self._of(batch))

    def failed(
        self,
        batch: Batch,
        outcome: NotPersisted | PossiblyPersisted,
        read: Callable[[Batch], bool],
    ) -> None:
        """Tell of the events of a batch that ended badly; `read` gets its bytes if it can."""
        mine = self._of(batch)
        if not mine:
            return
        if self._on_failure is None or not read(batch):
            self._count(batch.topic, outcome.reason, len(mine))
        else:
            events = events_of(batch, outcome)
            self.give([events[place] for place in mine])

    def left(self, batch: Batch, outcome: PossiblyPersisted) -> None:
        """Log the events of a batch that the journal sends again: `on_failure` might do it too."""
        if mine := self._of(batch):
            self._told.note(batch.topic, outcome.reason, len(mine))

    def give(self, events: Sequence[GivenUp]) -> None:
        if self._on_failure is not None:
            try:
                self._on_failure(events)
            except ENDS_THE_PROGRAM:
                raise
            except BaseException as error:  # noqa: BLE001 - they are counted instead
                _log.error("on_failure raised", exc_info=error)
            else:
                return
        for event in events:
            self._count(event.topic, event.outcome.reason, 1)

    def raise_if_untold(self) -> None:
        """Log what was not logged yet, and raise if nobody was told of an event that ended badly.

        Raises:
            NotAllPersistedError: One has.
        """
        self._told.tell()
        if self.untold:
            raise NotAllPersistedError(self.result())

    def _of(self, batch: Batch) -> list[int]:
        """Return the places of these events in a batch."""
        mine: list[int] = []
        first = 0
        for claim in batch.claims:
            if isinstance(claim, TicketClaim) and claim.ticket is self:
                mine += range(first, first + len(claim.entries))
            first += len(claim.entries)
        return mine

    def _count(self, topic: str, reason: str, events: int) -> None:
        self.untold += events
        self._told.note(topic, reason, events)

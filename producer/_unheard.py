"""Bad outcomes that nobody asked for: counted, and told once a minute by topic and reason.

An outcome is a value, and code that was written for a client that raises may never look at it. What
is gone without a look is told here. It costs good outcomes nothing: only a delivery that failed
while nobody waited for it becomes one that tells when it goes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

from sequitur.base.log import Logger
from sequitur.producer._outcomes import Delivery

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from sequitur.producer._outcomes import NotPersisted, Outcome, PossiblyPersisted

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
        """Tell what was counted since the last time."""
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
        """Return the outcome."""
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

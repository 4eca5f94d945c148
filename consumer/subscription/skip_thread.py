"""Acks what has expired or is evicted of an open subscription, every so often, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from sequitur.consumer.subscription.skipping import skip_due
from sequitur.errors import (
    ConsumerError,
    ReorderError,
    SubscriptionClosedError,
    SubscriptionFencedError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.subscription.backlog import Surveyor
    from sequitur.consumer.subscription.detection import FindingKind
    from sequitur.consumer.subscription.skipping import OwnCursors

SKIPS_EACH_S: Final = 2.0
_TOLD_EACH_S: Final = 60.0

_logger: Final = logging.getLogger("sequitur.subscription")


class SkipThread:
    """Begins at once, and ends with `close`, or when the subscription is another process's."""

    def __init__(self, surveyor: Surveyor, own: OwnCursors, topics: Sequence[str]) -> None:
        self.counts: Counter[FindingKind] = Counter()
        self._surveyor = surveyor
        self._own = own
        self._topics = topics
        self._told: str | None = None
        self._told_s = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="subscription-skips", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, once what is under way is done."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(SKIPS_EACH_S):
            try:
                due = skip_due(self._surveyor, self._own, self._topics)
            except (SubscriptionClosedError, SubscriptionFencedError):
                return  # each call of the subscription says so
            except (ReorderError, ConsumerError) as error:
                # Receivers go on: brokers come back, and what is damaged of others gets mended.
                self._warn(f"what has expired is not looked for: {error}")
                continue
            self._told = None
            for one in due:
                self.counts[one.why] += one.messages
                _logger.warning(
                    "%s: %s: %s, %s", self._own.name, one.why.value, one.topic, one.sentence
                )

    def _warn(self, line: str) -> None:
        """Log a line, the same one once a minute."""
        now_s = time.monotonic()
        if line != self._told or now_s - self._told_s >= _TOLD_EACH_S:
            self._told, self._told_s = line, now_s
            _logger.warning("%s: %s", self._own.name, line)

"""Other timestamps for batches whose timestamps a broker refuses, though no sender gave them.

If a machine's clock is an hour ahead of the broker's, the broker refuses every event. It names the
range that it takes, and the producer learns the broker's time from that range.

A batch is dated anew under the numbers that it has. Other bytes must not get these numbers while an
attempt to send the batch may be in the log. So after an attempt without an answer the producer asks
the broker first. With a journal the batch is sent only once the journal has the new timestamp: each
later life sends the same bytes.

A batch has timestamps of its senders, or ours. The producer never changes those of the senders.
`Dating` and its table (`batching.batch`) say what can happen to ours.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.errors import BrokerError, FatalError
from sequitur.kafka.records import TimestampRange, timestamp_range
from sequitur.producer.batching.batch import Dating, DatingEvent
from sequitur.producer.delivery.sequencer import Doubt, Slot, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.base.process import StampClock
    from sequitur.kafka.wire import Wire
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.barred import BarredTopics
    from sequitur.producer.delivery.rounds import RoundMaker
    from sequitur.producer.delivery.send_queues import SendQueue, SendQueues

_TOLD_MS: Final = 60_000
"""A clock that differs by less than before is not told of again."""
_log = Logger(__name__)


class Redating:
    """Learn the broker's time, and date batches anew; one question at a time for each topic."""

    def __init__(
        self,
        *,
        wire: Wire,
        clock: StampClock,
        queues: SendQueues,
        rounds: RoundMaker,
        barred: BarredTopics,
        on_known: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._clock = clock
        self._queues = queues
        self._rounds = rounds
        self._barred = barred
        self._on_known = on_known
        self._on_failure = on_failure
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._told_ms = 0

    def refused(self, queue: SendQueue, slot: Slot[Batch], text: str) -> None:
        """Take note that a broker refuses timestamps of ours, and what it says of them."""
        found = timestamp_range(text)
        if found is None:
            why = text or "it does not say which it takes"
            self._bar(queue.topic, f"the broker refuses our timestamps: {why}")
            return
        slot.batch.on_dating(DatingEvent.REFUSED)
        for other in queue.sequencer:
            batch = other.batch
            is_still = other.state is State.READY and not other.held
            is_ours = batch.dating is not Dating.SENDERS
            if is_still and is_ours and not found.first_ms <= batch.newest_ms <= found.last_ms:
                batch.on_dating(DatingEvent.REFUSED)
        if queue.topic not in self._asking:
            task = self._loop.create_task(self._learn(queue.topic, found, self._loop.time()))
            self._asking[queue.topic] = task
            report_failure(task, self._on_failure)

    def is_asking(self, topic: str) -> bool:
        """Return whether the broker's time is not known yet."""
        return topic in self._asking

    def redate(self, queue: SendQueue) -> None:
        """Give the batches of a queue that need it the time of now."""
        now_ms = self._clock.now_ms()
        for slot in queue.sequencer:
            is_settled = slot.doubt is not Doubt.POSSIBLE
            is_still = slot.state is State.READY and not slot.held
            if slot.batch.is_misdated and is_settled and is_still:
                self._rounds.redate(queue, slot, now_ms)

    def stop(self) -> None:
        for task in self._asking.values():
            task.cancel()

    async def _learn(self, topic: str, found: TimestampRange, found_at_s: float) -> None:
        try:
            after_ms = await self._wire.timestamp_after_max_ms(topic)
        except BrokerError as error:
            if isinstance(error, FatalError):
                self._bar(topic, f"the broker refuses our timestamps, and {error}")
            for queue in self._queues:
                if queue.topic == topic:
                    for slot in queue.sequencer:
                        if slot.batch.is_misdated:
                            slot.batch.on_dating(DatingEvent.KEPT)
        else:
            since_ms = int((self._loop.time() - found_at_s) * 1000)
            self._clock.correct(found.broker_ms(after_ms) + since_ms)
            self._tell()
        finally:
            del self._asking[topic]
            self._on_known()

    def _bar(self, topic: str, why: str) -> None:
        self._barred.bar(topic, f"topic {topic}: {why}: is this machine's clock right?")

    def _tell(self) -> None:
        ahead_ms = self._clock.ahead_ms
        if abs(ahead_ms - self._told_ms) >= _TOLD_MS:
            self._told_ms = ahead_ms
            which = "ahead of" if ahead_ms > 0 else "behind"
            _log.warning(
                f"this machine's clock is {_span(abs(ahead_ms))} {which} the broker's: "
                "records get the broker's time"
            )


def _span(length_ms: int) -> str:
    """Return a time in the largest unit that it has."""
    length = timedelta(milliseconds=length_ms)
    units = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1)))
    name, unit = next((each for each in units if length >= each[1]), ("s", timedelta(seconds=1)))
    return f"{length / unit:.1f} {name}"

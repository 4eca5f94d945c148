"""Renewing the identity of a partition whose sequence numbers are lost.

The sequencer says what is due: `query_due`, `renewal_due`, or a provisional identity. `Recovery`
does the I/O for it: it gets the identity, asks the broker which numbers it has, searches the log,
and gets a newer identity.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.base.retry import Retry
from sequitur.base.units import milliseconds
from sequitur.errors import (
    BrokerError,
    FatalError,
    JournalError,
    RetriableError,
    TakenOverError,
    WrongClusterError,
)
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_format import following
from sequitur.producer.batching.batch import first_id, oldest_timestamp_ms
from sequitur.producer.delivery.sequencer import Doubt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from random import Random

    from sequitur.base.process import StampClock
    from sequitur.base.retry import Backoff
    from sequitur.kafka.wire import Wire
    from sequitur.producer._running import Counters
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.rounds import RoundMaker
    from sequitur.producer.delivery.send_queues import SendQueue
    from sequitur.producer.delivery.settlement import Settlement

_EXPIRY_MARGIN_MS: Final = 3_600_000
_CLOCK_SLACK_MS: Final = 60_000
"""How far the broker's clock may be behind, for topics with the broker's own timestamps."""

_log = Logger(__name__)


class Recovery:
    """Recover partitions, one task each.

    No identity is used twice for one partition: each renewal takes one that is newer than all
    before (see `delivery.identities`).
    """

    def __init__(
        self,
        *,
        wire: Wire,
        clock: StampClock,
        identities: Identities,
        settlement: Settlement,
        counters: Counters,
        backoff: Backoff,
        random: Random,
        rounds: RoundMaker,
        on_renewed: Callable[[SendQueue], None],
        on_failure: Callable[[Exception], None],
        refresh: Callable[[], None],
        producer_expiry: timedelta,
    ) -> None:
        self._identities = identities
        self._wire = wire
        self._clock = clock
        self._settlement = settlement
        self._counters = counters
        self._retry = Retry(backoff=backoff, random=random.random)
        self._rounds = rounds
        self._on_renewed = on_renewed
        self._refresh = refresh
        expiry_ms = milliseconds(producer_expiry)
        self._old_ms = max(expiry_ms - _EXPIRY_MARGIN_MS, expiry_ms // 2)
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, queue: SendQueue) -> None:
        queue.begin_recovery()
        task = asyncio.create_task(self._recover(queue))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        report_failure(task, self._on_failure)

    def is_old(self, batch: Batch) -> bool:
        """Return whether a broker may soon forget who sent the batch, and then append it again.

        A broker goes by the timestamps of records: it may forget the sender of old ones at once.
        """
        return self._clock.now_ms() - batch.newest_ms > self._old_ms

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _recover(self, queue: SendQueue) -> None:
        attempts = self._retry.attempts()
        try:
            while not await self._try_to_recover(queue):
                self._refresh()
                await attempts.pause()
        finally:
            queue.end_recovery()
            self._on_renewed(queue)
            self._rounds.wake()

    async def _try_to_recover(self, queue: SendQueue) -> bool:
        """Do all that is due; return False if it has to be tried again."""
        sequencer = queue.sequencer
        try:
            identity = await self._identities.known()
            if sequencer.identity.is_provisional:
                sequencer.begin(identity)
                self._rounds.renewed(queue)
            if sequencer.query_due:
                await self._query(queue)
            if sequencer.renewal_due:
                newer = await self._identities.newer_than(
                    sequencer.identity, fenced=sequencer.needs_new_id
                )
                # Meanwhile batches may have expired, and their slots been dropped.
                if sequencer.renewal_due:
                    self._renew(queue, newer)
            if queue.inherited and sequencer.is_empty:
                await self._search_inherited(queue)
        except (TakenOverError, WrongClusterError, JournalError) as error:
            self._on_failure(error)
        except BrokerError as error:
            queue.note_trouble(str(error))
            return False
        except Exception as error:  # noqa: BLE001
            # A defect of this code: without a log line the events would wait for ever, unnoticed.
            queue.note_trouble(repr(error))
            _log.error("a partition could not be recovered", exc_info=error)
            return False
        return True

    async def _query(self, queue: SendQueue) -> None:
        """Decide the slots that may be in the log and that the broker does not recognise."""
        sequencer = queue.sequencer
        if not self._identities.still_ours(sequencer.leading):
            await self._search(queue, numbers_hold=False)
            return
        doubted = [s for s in sequencer if s.doubt in (Doubt.POSSIBLE, Doubt.ASKED)]
        if any(self.is_old(slot.batch) for slot in doubted):
            # The broker may forget what it says now before the batch arrives.
            await self._search(queue)
            return
        last_sequence = await self._wire.last_sequence(
            queue.topic, queue.partition, sequencer.leading
        )
        is_same_log = last_sequence is None or await self._is_same_log(queue)
        queue.note_answer(asyncio.get_running_loop().time())
        if not sequencer.query_due:
            return
        if not is_same_log:
            await self._search(queue)
            return
        for slot in sequencer.on_described(last_sequence):
            self._settlement.persisted(slot.batch, None)
        if sequencer.query_due:
            await self._search(queue)

    async def _is_same_log(self, queue: SendQueue) -> bool:
        """Return whether the partition has the log that batches without an answer were sent to.

        A topic that was recreated takes any sequence at first: that it has later ones is no proof.
        Ids of topics do not come back, so this may be asked after the broker has answered.
        """
        if not await self._wire.refresh([queue.topic]):
            raise RetriableError("no broker answered a metadata request")
        topic_id = self._wire.topic_id(queue.topic)
        uncertain = [slot for slot in queue.sequencer if slot.possibly_appended]
        return all(slot.topic_id in {None, topic_id} for slot in uncertain)

    async def _search(self, queue: SendQueue, *, numbers_hold: bool = True) -> None:
        """Search the log for slots of which the broker knows nothing: it forgets producers."""
        sequencer = queue.sequencer
        asked = [slot for slot in sequencer if slot.possibly_appended]
        try:
            found = await self._found_in_log(queue, [slot.batch for slot in asked])
        except FatalError as error:
            await self._give_up_searching(queue, str(error))
            return
        if not sequencer.query_due:
            return
        alive = set(sequencer)
        slots = [slot for slot in asked if slot.batch in found and slot in alive]
        sequencer.on_searched(slots, numbers_hold=numbers_hold)
        for slot in slots:
            self._settlement.persisted(slot.batch, None)
        _log.info(
            "the log was searched for batches that the broker has forgotten",
            topic=queue.topic,
            partition=queue.partition,
            batches=len(asked),
            found=len(slots),
        )

    async def _search_inherited(self, queue: SendQueue) -> None:
        """Settle the batches that a former life left without numbers and that are in the log.

        The log has them only if the journal was copied: then the holder of the other copy may have
        sent them. It has not if the broker knows of no number after those of this journal.
        """
        former = Identity(queue.inherited_from.producer_id, queue.inherited_from.epoch)
        found: set[Batch] = set()
        last = None
        if self._identities.still_ours(former) and not former.is_provisional:
            last = await self._wire.last_sequence(queue.topic, queue.partition, former)
        if last is None or following(last, 1) != queue.inherited_from.base_sequence:
            alive = [batch for batch in queue.inherited if not batch.ended]
            try:
                found = await self._found_in_log(queue, alive)
            except FatalError as error:
                _log.warning(
                    "no right to read the log: events that another holder of this journal sent "
                    "would be duplicated",
                    topic=queue.topic,
                    partition=queue.partition,
                    reason=str(error),
                )
        for batch in queue.resolve_inherited(found):
            self._settlement.persisted(batch, None)

    async def _found_in_log(self, queue: SendQueue, batches: Iterable[Batch]) -> set[Batch]:
        """Return the batches that the log holds, by the ids of their first events.

        Batches that end meanwhile, as when their time is over, are left out.
        """
        asked: dict[bytes, Batch] = {}
        since_ms = 0
        for batch in batches:
            data = await self._rounds.bytes_of(batch)
            if data is None:
                continue
            oldest_ms = oldest_timestamp_ms(data)
            since_ms = min(since_ms, oldest_ms) if asked else oldest_ms
            asked[first_id(data)] = batch
        if not asked:
            return set()
        found = await self._wire.find_events(
            queue.topic, queue.partition, asked.keys(), since_ms - _CLOCK_SLACK_MS
        )
        return {asked[event_id] for event_id in found}

    async def _give_up_searching(self, queue: SendQueue, reason: str) -> None:
        """Go on without the log: the producer has no right to read it."""
        sequencer = queue.sequencer
        if sequencer.unknown:
            _log.warning(
                "no right to read the log: events that the broker has forgotten would be "
                "duplicated",
                topic=queue.topic,
                partition=queue.partition,
                reason=reason,
            )
            sequencer.trust()
        while sequencer.query_due:
            slot = next(slot for slot in sequencer if slot.possibly_appended)
            data = await self._rounds.bytes_of(slot.batch)
            if data is None or not sequencer.query_due or slot not in sequencer:
                continue
            if self._rounds.spill is not None:
                self._rounds.spill.hold(slot.batch, data)
            verdict = sequencer.drop(slot)
            why = f"it was sent, the broker has lost this producer's state, and {reason}"
            self._settlement.dropped(slot.batch, verdict, why)

    def _renew(self, queue: SendQueue, identity: Identity) -> None:
        queue.sequencer.renew(identity)
        self._rounds.renewed(queue)
        self._counters.renewals += 1
        _log.info(
            "identity renewed",
            topic=queue.topic,
            partition=queue.partition,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            reason=queue.trouble,
        )
        self._on_renewed(queue)

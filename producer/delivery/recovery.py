"""Going on under another identity when the numbers of a partition are lost.

The sequencer says when (`query_due`, `renewal_due`, a provisional identity); here is the I/O of it:
asking the brokers who we are, what they hold of us, and for a newer identity.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from sequitur.producer._errors import BrokerError, FatalError, TakenOverError, WrongClusterError
from sequitur.producer._log import Logger
from sequitur.producer.batching.batch import first_id, oldest_timestamp_ms
from sequitur.producer.delivery.slots import following
from sequitur.producer.kafka.identity import Identity
from sequitur.producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from random import Random

    from sequitur.producer._statistics import Counters
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.partition_queue import Lane
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.rounds import Rounds
    from sequitur.producer.delivery.settlement import Settlement
    from sequitur.producer.kafka.backoff import Backoff
    from sequitur.producer.kafka.wire import Wire

_EXPIRY_MARGIN_MS: Final = 3_600_000
_CLOCK_SLACK_MS: Final = 60_000
"""Topics with the broker's own timestamps: its clock may be behind ours by so much."""

_log = Logger(__name__)


class Recovery:
    """Renews the identity of lanes.

    An identity is never used twice for one partition, since each renewal takes one that is newer
    than all before (see `delivery.identities`).

    Args:
        wire: The way to the brokers.
        identities: Who we are, and are next.
        settlement: Where outcomes go.
        counters: What is counted.
        backoff: How long to wait after a failure.
        random: Jitter.
        rounds: Makes renewals durable.
        on_renewed: Called with a lane that can go on.
        on_failure: Called when nothing can be sent any more.
        refresh: Asks anew who leads, soon: whoever did not answer may lead no more.
        producer_expiry: When a broker forgets a producer, after its newest record's timestamp.
    """

    def __init__(
        self,
        *,
        wire: Wire,
        identities: Identities,
        settlement: Settlement,
        counters: Counters,
        backoff: Backoff,
        random: Random,
        rounds: Rounds,
        on_renewed: Callable[[Lane], None],
        on_failure: Callable[[Exception], None],
        refresh: Callable[[], None],
        producer_expiry: timedelta,
    ) -> None:
        self._identities = identities
        self._wire = wire
        self._settlement = settlement
        self._counters = counters
        self._backoff = backoff
        self._random = random
        self._rounds = rounds
        self._on_renewed = on_renewed
        self._refresh = refresh
        expiry_ms = milliseconds(producer_expiry)
        self._old_ms = max(expiry_ms - _EXPIRY_MARGIN_MS, expiry_ms // 2)
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, lane: Lane) -> None:
        """Get a lane going again, in the background."""
        lane.recovering = True
        task = asyncio.create_task(self._recover(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_old(self, batch: Batch) -> bool:
        """Whether a broker may be about to forget who sent the batch, and take it once more.

        It goes by the timestamps of records, so it may forget at once who sent old ones.
        """
        return time.time() * 1000 - batch.newest_ms > self._old_ms

    def stop(self) -> None:
        """Recover nothing any more."""
        for task in self._tasks:
            task.cancel()

    async def _recover(self, lane: Lane) -> None:
        failures = 0
        try:
            while not await self._recovered(lane):
                failures += 1
                self._refresh()
                await asyncio.sleep(self._backoff.delay_ms(failures, self._random.random()) / 1000)
        finally:
            lane.recovering = False
            self._on_renewed(lane)
            self._rounds.poke()

    async def _recovered(self, lane: Lane) -> bool:
        sequencer = lane.sequencer
        try:
            identity = await self._identities.known()
            if sequencer.identity.is_provisional:
                sequencer.begin(identity)
                self._rounds.renewed(lane)
            if sequencer.query_due:
                await self._query(lane)
            if sequencer.renewal_due:
                newer = await self._identities.newer_than(
                    sequencer.identity, fenced=sequencer.needs_new_id
                )
                # While we waited, outcomes may have been told and slots dropped.
                if sequencer.renewal_due:
                    self._renew(lane, newer)
            if lane.inherited and sequencer.is_empty:
                await self._judge_inherited(lane)
        except (TakenOverError, WrongClusterError) as error:
            self._on_failure(error)
        except BrokerError as error:
            lane.trouble = str(error)
            return False
        except Exception as error:  # noqa: BLE001
            # A fault of ours: the partition's events would wait for ever, and nobody would know.
            lane.trouble = repr(error)
            _log.error("a partition could not be recovered", exc_info=error)
            return False
        return True

    async def _query(self, lane: Lane) -> None:
        """Decide those slots that may be in the log and that the broker does not recognise."""
        sequencer = lane.sequencer
        if not self._identities.still_ours(sequencer.leading):
            await self._search(lane, numbers_hold=False)
            return
        if any(s.possibly_appended and not s.searched and self.is_old(s.batch) for s in sequencer):
            # What a broker says now may be forgotten when the batch arrives.
            await self._search(lane)
            return
        last_sequence = await self._wire.last_sequence(
            lane.topic, lane.partition, sequencer.leading
        )
        lane.active_at_s = asyncio.get_running_loop().time()
        if not sequencer.query_due:
            return
        for slot in sequencer.on_described(last_sequence):
            self._settlement.persisted(slot.batch, None)
        if sequencer.query_due:
            await self._search(lane)

    async def _search(self, lane: Lane, *, numbers_hold: bool = True) -> None:
        """Read the log for slots of which the broker knows nothing: it may have forgotten us."""
        sequencer = lane.sequencer
        asked = [slot for slot in sequencer if slot.possibly_appended]
        try:
            found = await self._found_in_log(lane, [slot.batch for slot in asked])
        except FatalError as error:
            self._give_up_searching(lane, str(error))
            return
        if not sequencer.query_due:
            return
        alive = set(sequencer)
        slots = [slot for slot in asked if slot.batch in found and slot in alive]
        sequencer.on_searched(slots, numbers_hold=numbers_hold)
        for slot in slots:
            self._settlement.persisted(slot.batch, None)
        _log.info(
            "the log was read for what a broker could not tell of",
            topic=lane.topic,
            partition=lane.partition,
            batches=len(asked),
            found=len(slots),
        )

    async def _judge_inherited(self, lane: Lane) -> None:
        """Find out which batches that a former life left without numbers are in the log after all.

        None is, unless the journal was copied: then who has the other copy may have sent them. If
        the broker knows of nothing behind what this journal has numbered, nobody has.
        """
        former = Identity(lane.inherited_from.producer_id, lane.inherited_from.epoch)
        found: set[Batch] = set()
        last = None
        if self._identities.still_ours(former) and not former.is_provisional:
            last = await self._wire.last_sequence(lane.topic, lane.partition, former)
        if last is None or following(last, 1) != lane.inherited_from.base_sequence:
            alive = [batch for batch in lane.inherited if not batch.given_up]
            try:
                found = await self._found_in_log(lane, alive)
            except FatalError as error:
                _log.warning(
                    "the log may not be read; what another holder of this journal has sent would "
                    "be doubled",
                    topic=lane.topic,
                    partition=lane.partition,
                    reason=str(error),
                )
        lane.inherited.clear()
        for batch in [batch for batch in lane.waiting if batch in found]:
            lane.waiting.remove(batch)
            self._settlement.persisted(batch, None)

    async def _found_in_log(self, lane: Lane, batches: Iterable[Batch]) -> set[Batch]:
        """Those that the log holds, by the ids of their first events."""
        asked: dict[bytes, Batch] = {}
        since_ms = 0
        for batch in batches:
            data = await self._rounds.bytes_of(batch)
            oldest_ms = oldest_timestamp_ms(data)
            since_ms = min(since_ms, oldest_ms) if asked else oldest_ms
            asked[first_id(data)] = batch
        if not asked:  # they have expired meanwhile
            return set()
        found = await self._wire.find_events(
            lane.topic, lane.partition, asked.keys(), since_ms - _CLOCK_SLACK_MS
        )
        return {asked[event_id] for event_id in found}

    def _give_up_searching(self, lane: Lane, reason: str) -> None:
        sequencer = lane.sequencer
        if sequencer.unknown:
            _log.warning(
                "the log may not be read; what the broker has forgotten would be doubled",
                topic=lane.topic,
                partition=lane.partition,
                reason=reason,
            )
            sequencer.trust()
        while sequencer.query_due:
            slot = next(slot for slot in sequencer if slot.possibly_appended)
            verdict = sequencer.drop(slot)
            why = f"it was sent, the broker has lost what it knew of us, and {reason}"
            self._settlement.dropped(slot.batch, verdict, why)

    def _renew(self, lane: Lane, identity: Identity) -> None:
        lane.sequencer.renew(identity)
        self._rounds.renewed(lane)
        self._counters.renewals += 1
        _log.info(
            "identity renewed",
            topic=lane.topic,
            partition=lane.partition,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            reason=lane.trouble,
        )
        self._on_renewed(lane)

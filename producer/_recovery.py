"""Going on under another identity when the numbers of a partition are lost.

The sequencer says when (`query_due`, `renewal_due`); here is the I/O of it: asking the broker for
what it holds of us, and for a new producer id when the epochs of the old one are used up or fenced.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from producer._errors import BrokerError, FatalError
from producer._log import Logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from producer._backoff import Backoff
    from producer._lane import Batch, Lane
    from producer._rounds import Rounds
    from producer._settlement import Settlement
    from producer._slot import Identity, Slot
    from producer._statistics import Counters
    from producer._wire import Wire

_CLOCK_SLACK_MS: Final = 60_000
"""Topics with the broker's own timestamps: its clock may be behind ours by so much."""

_log = Logger(__name__)


class Recovery:
    """Renews the identity of lanes.

    Epochs are bumped by ourselves, as Java's idempotent producer does (KIP-360): the broker takes
    any higher epoch that starts at sequence 0. An identity is never used twice for one partition,
    since each renewal takes one that is newer than all before.

    Args:
        wire: The way to the brokers.
        identity: The identity that lanes start under.
        settlement: Where outcomes go.
        counters: What is counted.
        backoff: How long to wait after a failure.
        random: Jitter.
        rounds: Makes renewals durable.
        on_renewed: Called with a lane that can go on.
    """

    def __init__(
        self,
        *,
        wire: Wire,
        identity: Identity,
        settlement: Settlement,
        counters: Counters,
        backoff: Backoff,
        random: Random,
        rounds: Rounds,
        on_renewed: Callable[[Lane], None],
    ) -> None:
        self.identity = identity
        self._wire = wire
        self._settlement = settlement
        self._counters = counters
        self._backoff = backoff
        self._random = random
        self._rounds = rounds
        self._on_renewed = on_renewed
        self._tasks: set[asyncio.Task[None]] = set()
        self._new_id = asyncio.Lock()

    def begin(self, lane: Lane) -> bool:
        """Get a lane going again, in the background if brokers have to be asked.

        Returns:
            Whether it goes again already.
        """
        if lane.sequencer.renewal_due and not lane.sequencer.needs_new_id:
            newer = self._newer_than(lane.sequencer.identity)
            if newer is not None:
                self._renew(lane, newer)
                return True
        lane.recovering = True
        task = asyncio.create_task(self._recover(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return False

    def stop(self) -> None:
        """Recover nothing any more."""
        for task in self._tasks:
            task.cancel()

    async def _recover(self, lane: Lane) -> None:
        failures = 0
        try:
            while not await self._recovered(lane):
                failures += 1
                await asyncio.sleep(self._backoff.delay_ms(failures, self._random.random()) / 1000)
        finally:
            lane.recovering = False
            self._on_renewed(lane)

    async def _recovered(self, lane: Lane) -> bool:
        sequencer = lane.sequencer
        try:
            if sequencer.query_due:
                await self._query(lane)
            if sequencer.renewal_due:
                newer = None
                if not sequencer.needs_new_id:
                    newer = self._newer_than(sequencer.identity)
                newer = newer or await self._with_new_id(sequencer.identity)
                # While we waited, outcomes may have been told and slots dropped.
                if sequencer.renewal_due:
                    self._renew(lane, newer)
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
        last_sequence = await self._wire.last_sequence(
            lane.topic, lane.partition, sequencer.identity
        )
        lane.active_at_s = asyncio.get_running_loop().time()
        if not sequencer.query_due:
            return
        for slot in sequencer.on_described(last_sequence):
            self._settlement.persisted(slot.batch, None)
        if sequencer.query_due:
            await self._search(lane)

    async def _search(self, lane: Lane) -> None:
        """Read the log for slots of which the broker knows nothing: it may have forgotten us."""
        sequencer = lane.sequencer
        asked = {slot.batch.first_id(): slot for slot in sequencer if slot.maybe}
        if not asked:  # they have expired meanwhile
            sequencer.on_searched(())
            return
        since_ms = min(slot.batch.oldest_timestamp_ms() for slot in asked.values())
        try:
            found = await self._wire.find_events(
                lane.topic, lane.partition, asked.keys(), since_ms - _CLOCK_SLACK_MS
            )
        except FatalError as error:
            self._give_up_searching(lane, str(error))
            return
        if not sequencer.query_due:
            return
        alive = set(sequencer)
        slots: list[Slot[Batch]] = [
            slot for event_id, slot in asked.items() if event_id in found and slot in alive
        ]
        sequencer.on_searched(slots)
        for slot in slots:
            self._settlement.persisted(slot.batch, None)
        _log.info(
            "the broker had forgotten this producer; the log was read",
            topic=lane.topic,
            partition=lane.partition,
            batches=len(asked),
            found=len(slots),
        )

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
            slot = sequencer.slots[0]
            verdict = sequencer.drop(slot)
            why = f"it was sent, the broker has lost what it knew of us, and {reason}"
            self._settlement.dropped(slot.batch, verdict, why)

    def _newer_than(self, identity: Identity) -> Identity | None:
        """An identity that `identity`'s lane was never under; None if a new id is needed."""
        if self.identity == identity:
            bumped = identity.bumped()
            if bumped is None:
                return None
            self.identity = bumped
        return self.identity

    async def _with_new_id(self, identity: Identity) -> Identity:
        async with self._new_id:
            if self.identity.producer_id == identity.producer_id:
                self.identity = await self._wire.new_producer_id()
            return self.identity

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

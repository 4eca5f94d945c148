"""The sender: requests out, answers in, and everything that goes wrong between.

A request takes from each partition that has something to send, and room in its window, one batch;
there is one request a leader. The next does not wait for the answers. The batches have their
numbers already, and the journal has them, if there is one (see `delivery.rounds`).

State, and its rules:

- `_due`: lanes that may have something to send. Whoever changes that (a round is durable, an
  answer comes, a wait ends) puts the lane in by `poke`; the sender takes it out, and puts it in
  again if it found something.
- A lane waits with `Lane.retry_at_s` after its head failed; a timer pokes it.
- A broker that is not connected, or a partition without a leader, is somebody's task to get
  (`Leaders`); that task pokes the lanes when it is done.
- `_exchanges`: requests whose answer is waited for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from sequitur.producer._errors import BrokerError, OutcomeUnknownError
from sequitur.producer._log import Logger
from sequitur.producer.delivery.leaders import Leaders
from sequitur.producer.delivery.recovery import Recovery
from sequitur.producer.delivery.round import stamp_of
from sequitur.producer.delivery.slots import Slot, State, Verdict
from sequitur.producer.kafka.backoff import Backoff
from sequitur.producer.kafka.error_codes import Answer, Meaning, meaning_of
from sequitur.producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer._statistics import Counters
    from sequitur.producer.batching.accumulator import Accumulator
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.partition_queue import Lane
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.rounds import Rounds
    from sequitur.producer.delivery.settlement import Settlement
    from sequitur.producer.kafka.produce_answers import PartitionAnswer
    from sequitur.producer.kafka.wire import Wire

_MAX_REQUEST_BYTES: Final = 16 << 20
_TURN_BYTES: Final = 1 << 20
"""After so much is written whoever else waits for the loop has a turn."""
_MAX_ODD_ANSWERS: Final = 5
_MAX_SWEEP_S: Final = 1.0
_REST_S: Final = 60.0
"""After so long without an answer a broker may have forgotten a producer: expiry is 24 h in the
usual settings, and should not be set below this."""

_log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class Stamped:
    """A batch of a request, ready for the wire.

    Attributes:
        lane: Its partition.
        slot: Its place in the partition's sequence.
        node: The leader it goes to.
        data: Its bytes, with the sequence.
    """

    lane: Lane
    slot: Slot[Batch]
    node: int
    data: bytes


class Sender:
    """Sends what the accumulator holds.

    Args:
        wire: The way to the brokers.
        accumulator: What there is to send.
        settlement: Where outcomes go.
        settings: Timeouts, window, backoff.
        identities: Who the broker takes us for.
        counters: What is counted.
        random: Jitter.
        rounds: Where batches come from, and renewals become durable.
        on_failure: Called when nothing can be sent any more.
    """

    def __init__(
        self,
        *,
        wire: Wire,
        accumulator: Accumulator,
        settlement: Settlement,
        settings: ProducerSettings,
        identities: Identities,
        counters: Counters,
        random: Random,
        rounds: Rounds,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._accumulator = accumulator
        self._settlement = settlement
        self._settings = settings
        self._counters = counters
        self._random = random
        self._rounds = rounds
        self._backoff = Backoff(
            initial_ms=milliseconds(settings.retry_backoff),
            maximum_ms=milliseconds(settings.retry_backoff_max),
        )
        self._delivery_timeout_s = settings.delivery_timeout.total_seconds()
        self._due: dict[Lane, None] = {}
        self._wake = asyncio.Event()
        self._exchanges: set[asyncio.Task[None]] = set()
        self._leaders = Leaders(wire, self._backoff, random, on_change=self.poke_all)
        self._recovery = Recovery(
            wire=wire,
            identities=identities,
            settlement=settlement,
            counters=counters,
            backoff=self._backoff,
            random=random,
            rounds=rounds,
            on_renewed=self.poke,
            on_failure=on_failure,
            refresh=self._leaders.refresh,
            producer_expiry=settings.producer_expiry,
        )

    def poke(self, lane: Lane) -> None:
        """The lane may have something to send."""
        self._due[lane] = None
        self._wake.set()

    def poke_all(self) -> None:
        """Any lane may have something to send."""
        for route in self._accumulator.routes.values():
            self._due.update(dict.fromkeys(route.lanes))
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        sweeps = self._loop.create_task(self._sweep())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                written = 0
                while batches := self._next_batches():
                    self._write(batches)
                    written += sum(len(batch.data) for batch in batches)
                    if written >= _TURN_BYTES:
                        written = 0
                        await asyncio.sleep(0)
        finally:
            sweeps.cancel()
            self._leaders.stop()
            self._recovery.stop()
            for exchange in self._exchanges:
                exchange.cancel()

    def _next_batches(self) -> list[Stamped]:
        now_s = self._loop.time()
        batches = []
        due, self._due = self._due, {}
        for lane in due:
            batch = self._next_of(lane, now_s)
            if batch is not None:
                batches.append(batch)
                self._due[lane] = None  # there may be more
        return batches

    def _next_of(self, lane: Lane, now_s: float) -> Stamped | None:
        sequencer = lane.sequencer
        if lane.recovering or now_s < lane.retry_at_s:
            return None
        if now_s - lane.active_at_s > _REST_S:
            sequencer.rest()
        nameless = sequencer.identity.is_provisional and (lane.has_batch or not sequencer.is_empty)
        doubtful = bool(lane.inherited) and sequencer.is_empty
        if nameless or doubtful or sequencer.query_due or sequencer.renewal_due:
            self._recovery.begin(lane)
            return None
        slot = sequencer.next_to_send()
        if slot is None:
            return None
        if slot.possibly_appended and not slot.searched and self._recovery.is_old(slot.batch):
            if sequencer.seek():
                self._recovery.begin(lane)
            return None
        node = self._leaders.leader(lane)
        if node is None or not self._read_back(lane, slot):
            return None
        sequencer.sent(slot)
        if self._rounds.spill is not None:
            self._rounds.spill.on_sent(slot.batch)
        data = slot.batch.encode(self._settings.compression, stamp_of(slot))
        return Stamped(lane, slot, node, data)

    def _read_back(self, lane: Lane, slot: Slot[Batch]) -> bool:
        """Whether a batch's bytes are in memory; those of it and the next are read if not."""
        spill = self._rounds.spill
        if spill is not None:
            ahead = islice(lane.sequencer.backlog, self._settings.max_in_flight)
            for wanted in (slot, *ahead):
                if wanted.batch.stored:
                    again = partial(self.poke, lane)
                    spill.request(wanted.batch, again, is_next=wanted is slot)
        return not slot.batch.stored

    def _write(self, batches: list[Stamped]) -> None:
        by_node: dict[int, list[Stamped]] = {}
        for batch in batches:
            by_node.setdefault(batch.node, []).append(batch)
        for node, all_of_node in by_node.items():
            request: list[Stamped] = []
            size = 0
            for batch in all_of_node:
                if request and size + len(batch.data) > _MAX_REQUEST_BYTES:
                    self._write_request(node, request)
                    request, size = [], 0
                request.append(batch)
                size += len(batch.data)
            self._write_request(node, request)

    def _write_request(self, node: int, batches: list[Stamped]) -> None:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for batch in batches:
            topics.setdefault(batch.lane.topic, []).append((batch.lane.partition, batch.data))
            self._counters.batches_sent += 1
            self._counters.batches_retried += batch.slot.attempts > 1
            self._counters.bytes_sent += len(batch.data)
        self._counters.requests += 1
        try:
            answers = self._wire.produce(node, list(topics.items()))
        except BrokerError as error:
            for batch in batches:
                self._take_answer(batch, Meaning(str(error), Answer.RETRIABLE), None)
            return
        exchange = self._loop.create_task(self._exchange(node, batches, answers))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)

    async def _exchange(
        self,
        node: int,
        batches: list[Stamped],
        answers: Awaitable[dict[tuple[str, int], PartitionAnswer]],
    ) -> None:
        try:
            answered = await answers
        except OutcomeUnknownError as error:
            trouble = Meaning(f"broker {node}: {error}", Answer.UNKNOWN, stale_metadata=True)
            for batch in batches:
                self._take_answer(batch, trouble, None)
            return
        for batch in batches:
            answer = answered.get((batch.lane.topic, batch.lane.partition))
            if answer is None:
                self._take_answer(batch, Meaning("the answer left it out", Answer.UNKNOWN), None)
            else:
                self._take_answer(batch, meaning_of(answer.code), answer.base_offset)

    def _take_answer(self, batch: Stamped, meaning: Meaning, base_offset: int | None) -> None:
        lane, slot = batch.lane, batch.slot
        if slot not in lane.sequencer.slots:
            return  # the producer was closed, and has told its outcome
        is_head = slot is lane.sequencer.slots[0]
        verdict = lane.sequencer.on_answer(slot, meaning.answer)
        self.poke(lane)
        self._rounds.poke()
        if verdict is Verdict.PERSISTED:
            lane.failures = 0
            lane.trouble = ""
            lane.active_at_s = self._loop.time()
            known = meaning.answer is Answer.PERSISTED and base_offset is not None
            self._settlement.persisted(slot.batch, base_offset if known else None)
            return
        if meaning.answer is not Answer.OUT_OF_ORDER:
            lane.trouble = meaning.name
        if meaning.stale_metadata:
            self._leaders.refresh()
        if verdict in (Verdict.REFUSED, Verdict.LOST):
            self._settlement.dropped(slot.batch, verdict, meaning.name)
        elif verdict is Verdict.SPLIT:
            self._split(lane, slot, meaning.name)
        else:
            self._try_again(lane, slot, meaning, is_head=is_head)

    def _split(self, lane: Lane, slot: Slot[Batch], reason: str) -> None:
        if slot.count == 1:
            verdict = lane.sequencer.drop(slot)
            self._settlement.dropped(slot.batch, verdict, reason)
            return
        self._counters.batches_split += 1
        if self._rounds.spill is not None:
            self._rounds.spill.read_now(slot.batch)
            self._rounds.spill.forget(slot.batch)
        parts = slot.batch.halves(self._settings.compression)
        if slot.batch.journaled is not None:
            lane.replaced.append(slot.batch)
        self._accumulator.replace(slot.batch, parts)
        lane.sequencer.replace(slot, [(part, part.count) for part in parts])

    def _try_again(self, lane: Lane, slot: Slot[Batch], meaning: Meaning, *, is_head: bool) -> None:
        if meaning.limited:
            slot.batch.odd_answers += 1
            if slot.batch.odd_answers >= _MAX_ODD_ANSWERS and slot.state is State.READY:
                verdict = lane.sequencer.drop(slot)
                reason = f"{meaning.name}, {slot.batch.odd_answers} times"
                self._settlement.dropped(slot.batch, verdict, reason)
                return
        if self._rounds.spill is not None:
            self._rounds.spill.on_retry(slot.batch)
        self._settlement.expire(lane, self._loop.time() - self._delivery_timeout_s, 0.0)
        if is_head:
            # Those behind it fail with it, and wait with it.
            lane.failures += 1
            wait_s = self._backoff.delay_ms(lane.failures, self._random.random()) / 1000
            lane.retry_at_s = self._loop.time() + wait_s
            self._loop.call_at(lane.retry_at_s, self.poke, lane)
            _log.debug(
                "batch will be sent again",
                topic=lane.topic,
                partition=lane.partition,
                reason=meaning.name,
                failures=lane.failures,
                wait_s=round(wait_s, 3),
            )

    async def _sweep(self) -> None:
        """Tell of what took longer than delivery_timeout."""
        timeout_s = self._delivery_timeout_s
        interval_s = min(timeout_s / 10, _MAX_SWEEP_S)
        while True:
            await asyncio.sleep(interval_s)
            now_s = self._loop.time()
            for route in self._accumulator.routes.values():
                for lane in route.lanes:
                    if lane.has_batch or not lane.sequencer.is_empty:
                        self._settlement.expire(lane, now_s - timeout_s, interval_s)
                        self.poke(lane)

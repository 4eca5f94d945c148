"""The sender: write produce requests, take their answers, retry what failed.

A request takes one batch from each partition that has something to send and is below its limit of
batches in flight; there is one request per leader, and the next does not wait for the answers. The
batches have their sequence numbers already, and the journal holds them, if there is one (see
`delivery.rounds`).

State, and its rules:

- A queue waits until `SendQueue.retry_at_s` after its head failed; a timer wakes it.
- `LeaderFinder` connects to brokers and looks for leaders in tasks of its own, which wake all
  queues when they are done.
- `_exchanges`: requests whose answer has not come yet.

No task ends unheard: what an answer, the sweep or a recovery raises fails the producer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.base.retry import Retry
from sequitur.errors import BrokerError, FatalError, OutcomeUnknownError
from sequitur.kafka.error_codes import FORBIDDEN_TOPIC, Answer, Meaning, meaning_of
from sequitur.kafka.producer_ids import PartitionAnswer
from sequitur.kafka.records import TimestampRange, timestamp_range
from sequitur.producer._settings import backoff_of
from sequitur.producer.batching.batch import Dating, DatingEvent, InMemory
from sequitur.producer.delivery.journaling import stamp_of
from sequitur.producer.delivery.recovery import Recovery
from sequitur.producer.delivery.sequencer import Doubt, Slot, State, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from random import Random

    from sequitur.base.process import StampClock
    from sequitur.base.retry import Attempts, Backoff
    from sequitur.kafka.wire import Wire
    from sequitur.producer._running import Counters
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.batch import Batch, Outstanding
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.rounds import RoundMaker
    from sequitur.producer.delivery.routes import BarredTopics, Routes, SendQueue, SendQueues
    from sequitur.producer.delivery.settlement import Settlement

_log = Logger(__name__)


class LeaderFinder:
    """Find the connected leader of a partition.

    At most one task refreshes the metadata, and at most one task per broker connects to it. Each
    tries again, with backoff, for as long as `leader` is called for what it looks for.
    """

    def __init__(
        self,
        wire: Wire,
        backoff: Backoff,
        random: Random,
        *,
        on_change: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._wire = wire
        self._retry = Retry(backoff=backoff, random=random.random)
        self._on_change = on_change
        self._on_failure = on_failure
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshes = self._retry.attempts()
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._connects: dict[int, Attempts] = {}
        self._connect_reasons: dict[int, str] = {}
        # The last fatal error of each broker, as a rejected login, since it was last connected.
        self._fatal_errors: dict[int, str] = {}

    def leader(self, topic: str, partition: int) -> int | str:
        """Return the connected leader of a partition, or the reason why there is none yet."""
        node = self._wire.leader(topic, partition)
        if node is None:
            self.refresh()
            return f"{topic}-{partition} has no leader"
        if self._wire.is_connected(node):
            return node
        if node not in self._connecting:
            self._connecting[node] = self._begin(self._connect(node))
        reason = self._connect_reasons.get(node)
        return f"broker {node} cannot be reached{f': {reason}' if reason else ''}"

    def refresh(self) -> None:
        """Refresh the metadata, in the background."""
        if self._refreshing is None:
            self._refreshing = self._begin(self._refresh())

    def _begin(self, looking: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(looking)
        report_failure(task, self._on_failure)
        return task

    def stop(self) -> None:
        """Cancel the refresh and all attempts to connect."""
        for task in (self._refreshing, *self._connecting.values()):
            if task is not None:
                task.cancel()

    async def _refresh(self) -> None:
        try:
            if await self._wire.refresh():
                self._refreshes.succeed()
                # A leader election takes a moment; asking in a tight loop does not speed it up.
                await self._retry.attempts().pause()
            else:
                await self._refreshes.pause()
        finally:
            self._refreshing = None
            self._on_change()

    async def _connect(self, node: int) -> None:
        try:
            reason = await self._try_to_connect(node)
            if reason is None:
                self._connects.pop(node, None)
                self._connect_reasons.pop(node, None)
                self._fatal_errors.pop(node, None)
                _log.debug("connected", broker=node)
            else:
                if reason != self._connect_reasons.get(node):
                    _log.warning("broker cannot be reached", broker=node, reason=reason)
                self._connect_reasons[node] = reason
                self.refresh()
                # An event that expires during the backoff reports this reason, too.
                self._on_change()
                await self._connects.setdefault(node, self._retry.attempts()).pause()
        finally:
            del self._connecting[node]
            self._on_change()

    async def _try_to_connect(self, node: int) -> str | None:
        """Connect, and return None, or the reason why there is no connection.

        A fatal error stays part of the reason until there is a connection: a user has to act on
        it, and a broker that is then away for a moment has not taken it back.
        """
        try:
            if await self._wire.connect(node):
                return None
            reason = "the cluster no longer names it"
        except FatalError as error:
            self._fatal_errors[node] = str(error)
            return str(error)
        except BrokerError as error:
            reason = str(error)
        fatal = self._fatal_errors.get(node)
        return f"{reason}; before that: {fatal}" if fatal else reason


# Other timestamps for batches whose own a broker refuses, though no sender gave them.
#
# A machine's clock that is an hour ahead of the broker's would have every event refused. The
# broker names the range that it takes, and its time follows from that. A batch is dated anew under
# the numbers that it has: they must not be given to other bytes while an attempt to send it may be
# in the log, so after an attempt without an answer the broker is asked first; and with a journal
# it is sent only once the journal has the new timestamp, so that each later life sends the same
# bytes.
#
# A batch has timestamps of its senders, or ours. The former are never touched. `Dating` and its
# table (`batching.batch`) say what can happen to ours.

_TOLD_MS: Final = 60_000
"""A clock that differs by less than before is not told of again."""


class Redating:
    """Learn the broker's time, and date batches anew."""

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
        """Ask nobody any more."""
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


_MAX_REQUEST_BYTES: Final = 16 << 20
_TURN_BYTES: Final = 1 << 20
"""After so many bytes are written, other tasks of the event loop get their turn."""
_MAX_ODD_ANSWERS: Final = 5
_MAX_SWEEP_S: Final = 1.0
_REST_S: Final = 60.0
"""After so long without an answer a broker may have forgotten a producer: expiry is 24 h in the
usual settings, and should not be set below this."""

_NO_ANSWER: Final = PartitionAnswer(-1, -1)


@dataclass(frozen=True, slots=True)
class Stamped:
    """A batch of a request, ready for the wire."""

    queue: SendQueue
    slot: Slot[Batch]  # its place in the partition's sequence
    node: int  # the leader it goes to
    data: bytes


class Sender:
    """Send what has sequence numbers."""

    def __init__(
        self,
        *,
        wire: Wire,
        clock: StampClock,
        queues: SendQueues,
        outstanding: Outstanding,
        settlement: Settlement,
        settings: ProducerSettings,
        identities: Identities,
        counters: Counters,
        random: Random,
        rounds: RoundMaker,
        barred: BarredTopics,
        routes: Routes,
        known_topics: Iterable[str],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._queues = queues
        self._outstanding = outstanding
        self._settlement = settlement
        self._compression = settings.compression
        self._window = settings.max_in_flight
        self._counters = counters
        self._barred = barred
        self._routes = routes
        self._waits_for_topics = settings.waits_for_topics
        self._proven = set(known_topics)
        self._random = random
        self._rounds = rounds
        self._backoff = backoff_of(settings)
        self._on_failure = on_failure
        self._delivery_timeout_s = settings.delivery_timeout.total_seconds()
        self._exchanges: set[asyncio.Task[None]] = set()
        self._leaders = LeaderFinder(
            wire, self._backoff, random, on_change=queues.wake_all, on_failure=on_failure
        )
        self._recovery = Recovery(
            wire=wire,
            clock=clock,
            identities=identities,
            settlement=settlement,
            counters=counters,
            backoff=self._backoff,
            random=random,
            rounds=rounds,
            on_renewed=queues.wake,
            on_failure=on_failure,
            refresh=self._leaders.refresh,
            producer_expiry=settings.producer_expiry,
        )

        self._redating = Redating(
            wire=wire,
            clock=clock,
            queues=queues,
            rounds=rounds,
            barred=barred,
            on_known=queues.wake_all,
            on_failure=on_failure,
        )

    async def run(self) -> None:
        """Send until cancelled."""
        sweeps = self._loop.create_task(self._sweep())
        report_failure(sweeps, self._on_failure)
        try:
            while True:
                await self._queues.are_woken.wait()
                self._queues.are_woken.clear()
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
            self._redating.stop()
            for exchange in self._exchanges:
                exchange.cancel()

    def _next_batches(self) -> list[Stamped]:
        now_s = self._loop.time()
        batches = []
        for queue in self._queues.take_woken():
            if self._wire.is_unauthorized(queue.topic) and not queue.is_empty:
                self._bar(queue, FORBIDDEN_TOPIC)
            batch = self._next_of(queue, now_s)
            if batch is not None:
                batches.append(batch)
                self._queues.wake(queue)  # there may be more
        return batches

    def _next_of(self, queue: SendQueue, now_s: float) -> Stamped | None:
        """Take the next batch of a queue, or begin what has to be done before it is sent."""
        if queue.is_recovering or now_s < queue.retry_at_s:
            return None
        sequencer = queue.sequencer
        if now_s - queue.active_at_s > _REST_S:
            sequencer.on_silence()
        if self._must_recover(queue):
            self._recovery.begin(queue)
            return None
        slot = sequencer.next_to_send()
        if slot is None:
            return None
        if self._begin_before(queue, slot):
            return None
        node = self._leader_of(queue)
        if node is None or not self._read_back(queue, slot):
            return None
        if not slot.possibly_appended:
            slot.topic_id = self._wire.topic_id(queue.topic)
        sequencer.sent(slot)
        if self._rounds.spill is not None:
            self._rounds.spill.on_sent(slot.batch)
        data = slot.batch.encode(self._compression, stamp_of(slot))
        return Stamped(queue, slot, node, data)

    def _begin_before(self, queue: SendQueue, slot: Slot[Batch]) -> bool:
        """Return whether something has to be done before a slot is sent, and begin it.

        One that may be in the log is asked for, if the broker may soon forget the producer, or if
        it is to get other timestamps.
        """
        batch = slot.batch
        if slot.possibly_appended and (
            (batch.is_misdated and slot.doubt is Doubt.POSSIBLE)
            or (slot.doubt is not Doubt.SEARCHED and self._recovery.is_old(batch))
        ):
            if queue.sequencer.require_query():
                self._recovery.begin(queue)
        elif not batch.is_misdated:
            return False
        elif not self._redating.is_asking(queue.topic):
            self._redating.redate(queue)
            self._queues.wake(queue)
        return True

    @staticmethod
    def _must_recover(queue: SendQueue) -> bool:
        sequencer = queue.sequencer
        if sequencer.query_due or sequencer.renewal_due:
            return True
        if sequencer.is_empty and queue.inherited:
            return True
        lacks_identity = sequencer.identity.is_provisional
        return lacks_identity and not queue.is_empty

    def _leader_of(self, queue: SendQueue) -> int | None:
        found = self._leaders.leader(queue.topic, queue.partition)
        if isinstance(found, str):
            queue.note_trouble(self._barred.reasons.get(queue.topic, found))
            return None
        return found

    def _read_back(self, queue: SendQueue, slot: Slot[Batch]) -> bool:
        """Return whether a batch's bytes are in memory; if not, have it and the next ones read."""
        spill = self._rounds.spill
        if spill is not None:
            ahead = islice(queue.sequencer.backlog, self._window)
            for wanted in (slot, *ahead):
                if wanted.batch.in_memory is InMemory.AWAY:
                    again = partial(self._queues.wake, queue)
                    spill.request(wanted.batch, again, is_next=wanted is slot)
        return slot.batch.in_memory is not InMemory.AWAY

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
            topics.setdefault(batch.queue.topic, []).append((batch.queue.partition, batch.data))
            self._counters.batches_sent += 1
            self._counters.batches_retried += batch.slot.attempts > 1
            self._counters.bytes_sent += len(batch.data)
        self._counters.requests += 1
        try:
            answers = self._wire.produce(node, list(topics.items()))
        except BrokerError as error:
            refused = Meaning(str(error), Answer.RETRIABLE)
            self._take_answers([(batch, refused, _NO_ANSWER) for batch in batches])
            return
        exchange = self._loop.create_task(self._exchange(node, batches, answers))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        report_failure(exchange, self._on_failure)

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
            self._take_answers([(batch, trouble, _NO_ANSWER) for batch in batches])
            return
        meanings: list[tuple[Stamped, Meaning, PartitionAnswer]] = []
        for batch in batches:
            answer = answered.get((batch.queue.topic, batch.queue.partition))
            if answer is None:
                left_out = Meaning("the answer left it out", Answer.UNKNOWN)
                meanings.append((batch, left_out, _NO_ANSWER))
            else:
                meanings.append((batch, meaning_of(answer.code), answer))
        self._take_answers(meanings)

    def _take_answers(self, answers: list[tuple[Stamped, Meaning, PartitionAnswer]]) -> None:
        """Take the answers of one request; that one of them fails costs none of the others."""
        errors = []
        for batch, meaning, answer in answers:
            try:
                self._take_answer(batch, meaning, answer)
            except Exception as error:  # noqa: BLE001 - the producer fails, once all are taken
                errors.append(error)
        if errors:
            raise errors[0]

    def _take_answer(self, batch: Stamped, meaning: Meaning, answer: PartitionAnswer) -> None:
        queue, slot = batch.queue, batch.slot
        if slot not in queue.sequencer.slots:
            return  # the producer was closed, and its events are completed
        is_head = slot is queue.sequencer.slots[0]
        meaning = self._judged(queue, slot, meaning)
        verdict = queue.sequencer.on_answer(slot, meaning.answer)
        self._queues.wake(queue)
        self._rounds.wake()
        if verdict is Verdict.PERSISTED:
            queue.note_success(self._loop.time())
            self._proven.add(queue.topic)
            self._barred.lift(queue.topic)
            if meaning.answer is Answer.PERSISTED:
                self._settlement.persisted(slot.batch, answer.base_offset, answer.append_ms)
            else:
                self._settlement.persisted(slot.batch, None)
            return
        if meaning.answer is not Answer.OUT_OF_ORDER:
            queue.note_trouble(meaning.name)
        if meaning.stale_metadata:
            self._leaders.refresh()
        if meaning.answer is Answer.MISDATED:
            self._redating.refused(queue, slot, answer.text)
        if meaning.answer is Answer.UNFIT:
            self._on_failure(FatalError(f"topic {queue.topic}: {meaning.name}"))
        elif verdict in (Verdict.REFUSED, Verdict.LOST):
            self._drop(batch, verdict, meaning.name)
        elif verdict is Verdict.SPLIT:
            self._split(batch, meaning.name)
        else:
            self._try_again(batch, meaning, is_head=is_head)

    def _judged(self, queue: SendQueue, slot: Slot[Batch], meaning: Meaning) -> Meaning:
        """Return what an answer means, where that depends on the batch, or on earlier answers.

        A timestamp that is out of bounds is the event's fault if its sender gave it: halving finds
        it, and those that are too far from the newest of a batch that was dated anew. Without the
        right to write a topic is barred: it had the right, and may get it back. One that has never
        taken a batch is refused, unless such topics are waited for. A batch that is too large says
        that the topic's limit is not what it was.
        """
        if meaning.answer is Answer.TOO_LARGE:
            self._routes.doubt(queue.topic)
        if meaning.answer is Answer.MISDATED:
            dating = slot.batch.dating
            halves = dating is Dating.SENDERS or (dating is Dating.REDATED and slot.count > 1)
            return replace(meaning, answer=Answer.TOO_LARGE) if halves else meaning
        if meaning.answer is not Answer.FORBIDDEN:
            return meaning
        if queue.topic in self._proven or self._waits_for_topics:
            return replace(meaning, name=self._bar(queue, meaning))
        return replace(meaning, name=_of(queue, meaning), answer=Answer.REFUSED)

    def _bar(self, queue: SendQueue, meaning: Meaning) -> str:
        reason = _of(queue, meaning)
        self._barred.bar(queue.topic, reason)
        return reason

    def _drop(self, sent: Stamped, verdict: Verdict, reason: str) -> None:
        """Settle a batch that was dropped from its sequencer after its answer."""
        self._hold_bytes(sent)
        self._settlement.dropped(sent.slot.batch, verdict, reason)

    def _hold_bytes(self, sent: Stamped) -> None:
        """Give a batch the bytes that were sent: its own may have left memory since."""
        if self._rounds.spill is not None:
            self._rounds.spill.hold(sent.slot.batch, sent.data)

    def _split(self, sent: Stamped, reason: str) -> None:
        """Go on with the halves of a batch that is too large; drop it if it is one record."""
        queue, slot = sent.queue, sent.slot
        if slot.count == 1:
            self._drop(sent, queue.sequencer.drop(slot), reason)
            return
        self._counters.batches_split += 1
        self._hold_bytes(sent)
        halves = slot.batch.halves(self._compression)
        slot.batch.end()
        if self._rounds.spill is not None:
            self._rounds.spill.forget(slot.batch)
        self._outstanding.replace(slot.batch, halves)
        queue.replace(slot, halves)

    def _try_again(self, sent: Stamped, meaning: Meaning, *, is_head: bool) -> None:
        """Retry a batch after a wait, unless its answers suggest that it is the batch's fault."""
        queue, slot = sent.queue, sent.slot
        if meaning.limited:
            slot.batch.odd_answers += 1
            if slot.batch.odd_answers >= _MAX_ODD_ANSWERS and slot.state is State.READY:
                verdict = queue.sequencer.drop(slot)
                self._drop(sent, verdict, f"{meaning.name}, {slot.batch.odd_answers} times")
                return
        if self._rounds.spill is not None:
            self._rounds.spill.on_retry(slot.batch)
        self._settlement.expire(queue, self._loop.time() - self._delivery_timeout_s, 0.0)
        if is_head:
            # Those behind it fail with it, and wait with it.
            wait_s = queue.back_off(self._backoff, self._random.random(), self._loop.time())
            self._loop.call_at(queue.retry_at_s, self._queues.wake, queue)
            _log.debug(
                "batch will be sent again",
                topic=queue.topic,
                partition=queue.partition,
                reason=meaning.name,
                failures=queue.failures,
                wait_s=round(wait_s, 3),
            )

    async def _sweep(self) -> None:
        """Settle what takes longer than delivery_timeout."""
        interval_s = min(self._delivery_timeout_s / 10, _MAX_SWEEP_S)
        while True:
            await asyncio.sleep(interval_s)
            accepted_until_s = self._loop.time() - self._delivery_timeout_s
            self._settlement.fail_unread()
            for queue in self._queues:
                if not queue.is_empty:
                    self._settlement.expire(queue, accepted_until_s, interval_s)
                    self._queues.wake(queue)
            self._barred.look_again()


def _of(queue: SendQueue, meaning: Meaning) -> str:
    """Return what an answer says of a topic, in a sentence."""
    return f"topic {queue.topic}: {meaning.name}{meaning.hint}"

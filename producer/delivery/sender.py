"""The sender: it writes produce requests, takes their answers, and retries what failed.

There is one request per leader, and the next does not wait for the answers. A request takes one
batch from each partition that has something to send and is below its limit of batches in flight.
These batches have their sequence numbers already, and the journal holds them, if there is one (see
`delivery.rounds`).

- A queue waits until `SendQueue.retry_at_s` after its head failed; a timer wakes it.
- `LeaderFinder` connects to brokers and looks for leaders in tasks of its own. They wake all queues
  when they are done.
- `Recovery` gets back the numbers of a partition that has lost them, and `Redating` gives batches
  other timestamps.

No task ends unheard: what an answer, the sweep or a recovery raises fails the producer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.errors import BrokerError, FatalError, OutcomeUnknownError
from sequitur.kafka.error_codes import FORBIDDEN_TOPIC, Answer, Meaning, meaning_of
from sequitur.kafka.producer_ids import PartitionAnswer
from sequitur.producer._settings import backoff_of
from sequitur.producer.batching.batch import Dating, InMemory
from sequitur.producer.delivery.journaling import stamp_of
from sequitur.producer.delivery.leaders import LeaderFinder
from sequitur.producer.delivery.recovery import Recovery
from sequitur.producer.delivery.redating import Redating
from sequitur.producer.delivery.sequencer import Doubt, Slot, State, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from random import Random

    from sequitur.base.process import StampClock
    from sequitur.kafka.wire import Wire
    from sequitur.producer._running import Counters
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.budget import Outstanding
    from sequitur.producer.delivery.barred import BarredTopics
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.rounds import RoundMaker
    from sequitur.producer.delivery.routes import Routes
    from sequitur.producer.delivery.send_queues import SendQueue, SendQueues
    from sequitur.producer.delivery.settlement import Settlement

_MAX_REQUEST_BYTES: Final = 16 << 20
_TURN_BYTES: Final = 1 << 20
"""After so many bytes are written, other tasks of the event loop get their turn."""
_MAX_ODD_ANSWERS: Final = 5
_MAX_SWEEP_S: Final = 1.0
_REST_S: Final = 60.0
"""After so long without an answer a broker may have forgotten a producer: expiry is 24 h in the
usual settings, and should not be set below this."""
_NO_ANSWER: Final = PartitionAnswer(-1, -1)
_log = Logger(__name__)


class Sender:
    """Send what has sequence numbers; `_exchanges` are the requests without an answer yet."""

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
        sweeps = self._loop.create_task(self._sweep())
        report_failure(sweeps, self._on_failure)
        try:
            while True:
                await self._queues.are_woken.wait()
                self._queues.are_woken.clear()
                written = 0
                while batches := self._next_batches():
                    self._write(batches)
                    written += sum(len(sent.data) for sent in batches)
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
            sent = self._next_of(queue, now_s)
            if sent is not None:
                batches.append(sent)
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

        The broker is asked for a slot that may be in the log, if it may soon forget the producer,
        or if the slot is to get other timestamps.
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
        for sent in batches:
            by_node.setdefault(sent.node, []).append(sent)
        for node, all_of_node in by_node.items():
            request: list[Stamped] = []
            size = 0
            for sent in all_of_node:
                if request and size + len(sent.data) > _MAX_REQUEST_BYTES:
                    self._write_request(node, request)
                    request, size = [], 0
                request.append(sent)
                size += len(sent.data)
            self._write_request(node, request)

    def _write_request(self, node: int, batches: list[Stamped]) -> None:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for sent in batches:
            topics.setdefault(sent.queue.topic, []).append((sent.queue.partition, sent.data))
            self._counters.batches_sent += 1
            self._counters.batches_retried += sent.slot.attempts > 1
            self._counters.bytes_sent += len(sent.data)
        self._counters.requests += 1
        try:
            answers = self._wire.produce(node, list(topics.items()))
        except BrokerError as error:
            refused = Meaning(str(error), Answer.RETRIABLE)
            self._take_answers([(sent, refused, _NO_ANSWER) for sent in batches])
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
            self._take_answers([(sent, trouble, _NO_ANSWER) for sent in batches])
            return
        meanings: list[tuple[Stamped, Meaning, PartitionAnswer]] = []
        for sent in batches:
            answer = answered.get((sent.queue.topic, sent.queue.partition))
            if answer is None:
                left_out = Meaning("the answer left it out", Answer.UNKNOWN)
                meanings.append((sent, left_out, _NO_ANSWER))
            else:
                meanings.append((sent, meaning_of(answer.code), answer))
        self._take_answers(meanings)

    def _take_answers(self, answers: list[tuple[Stamped, Meaning, PartitionAnswer]]) -> None:
        """Take the answers of one request, all of them, even if one of them raises."""
        errors = []
        for sent, meaning, answer in answers:
            try:
                self._take_answer(sent, meaning, answer)
            except Exception as error:  # noqa: BLE001 - the producer fails, once all are taken
                errors.append(error)
        if errors:
            raise errors[0]

    def _take_answer(self, sent: Stamped, meaning: Meaning, answer: PartitionAnswer) -> None:
        queue, slot = sent.queue, sent.slot
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
            self._drop(sent, verdict, meaning.name)
        elif verdict is Verdict.SPLIT:
            self._split(sent, meaning.name)
        else:
            self._try_again(sent, meaning, is_head=is_head)

    def _judged(self, queue: SendQueue, slot: Slot[Batch], meaning: Meaning) -> Meaning:
        """Return what an answer means, where that depends on the batch, or on earlier answers.

        - A timestamp out of bounds is the event's fault if its sender gave it: halving finds that
          event. Halving also finds events that are too far from the newest of a batch that was
          dated anew.
        - Without the right to write, a topic that has taken a batch is barred: it may get the right
          back. Batches of another topic are refused, unless such topics are waited for.
        - If a batch is too large, the topic's limit is not what it was.
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


@dataclass(frozen=True, slots=True)
class Stamped:
    """A batch of a request, ready for the wire."""

    queue: SendQueue
    slot: Slot[Batch]  # its place in the partition's sequence
    node: int  # the leader it goes to
    data: bytes


def _of(queue: SendQueue, meaning: Meaning) -> str:
    """Return what an answer says of a topic, in a sentence."""
    return f"topic {queue.topic}: {meaning.name}{meaning.hint}"

"""What sending rows failed of, in a task or the driver, and what was to be sent."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.base.retry import Backoff, Retry
from sequitur.base.settings import milliseconds
from sequitur.base.text import named
from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.event_time import TimestampRule
from sequitur.errors import (
    BrokerError,
    FatalError,
    FencedError,
    LogRangeError,
    LostRowsError,
    OutputMismatchError,
    SendRefusedError,
    SendUnansweredError,
    SinkError,
    SinkUnansweredError,
)
from sequitur.kafka.admin import TopicTimestamps
from sequitur.kafka.connections import GivesWay, kept_connections
from sequitur.kafka.error_codes import NO_ERROR, Answer, meaning_of
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import Untold
from sequitur.kafka.record_batch import Stamp, idempotent_batch
from sequitur.kafka.record_format import following
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.attempts import attempt_number
from sequitur.pipelines.sink.step_plans import (
    ANEW,
    OLDER_COPY,
    SequenceEnds,
    StepPlanner,
    partitions_of,
    rows_there,
    rows_until,
)
from sequitur.pipelines.workers import blocks_for, is_small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.step_log import StepDone
    from sequitur.kafka.connections import Connections, Leaders
    from sequitur.kafka.identity import Identity
    from sequitur.kafka.producer_ids import PartitionAnswer
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.rows.layout import KafkaBatch
    from sequitur.pipelines.rows.release import Batches, Selection
    from sequitur.pipelines.sink.step_plans import Planned, TopicPlan
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.workers import Workers


_UNANSWERED: Final = re.compile(
    "(SendUnanswered|SendRefused|Retriable|OutcomeUnknown|BrokerUnreachable)Error: "
)
"""What a task raises for brokers that do not answer, or do not take a row as a topic is set now."""
_RAISED: Final = re.compile("(OutputMismatch|LostRows|Fenced)Error: (.*)", re.DOTALL)


@contextlib.contextmanager
def errors_of_sending(workers: Workers, step: int, topics: Iterable[str]) -> Iterator[None]:
    """Return what a block or its tasks failed of, as an error that says what was to be written."""
    try:
        yield
    except (OutputMismatchError, StopRequestedError):
        raise
    except Exception as error:
        names = ", ".join(map(repr, topics))
        reason = workers.reason_of(error) or named(error)
        if (raised := _RAISED.match(reason)) is not None:
            told = f"step {step}: {raised[2]}"
            raise (FencedError if raised[1] == "Fenced" else OutputMismatchError)(told) from error
        kind = SinkUnansweredError if _UNANSWERED.match(reason) else SinkError
        raise kind(f"step {step} cannot be written to {names}: {reason}") from error


# The rows of one step for one output partition, sent by one attempt among perhaps many.
#
# Every row has its sequence before any is sent. So attempts need no agreement among themselves: one
# that died and left batches on their way, one that was given up and lives on, a speculative copy, a
# driver thought dead; whatever they send, the broker appends each sequence once, and refuses what
# does not follow its last. Whoever is refused, or gets no answer, drops what it has in flight, asks
# the leader how far the partition has got, and goes on from there.
#
# Four rules make that hold where a leader knows less than it might:
#
# - A leader without any state of the producer takes whatever sequence comes first. So a batch goes
# alone until one is acknowledged, which every replica that may lead then has. - A leader tells of
# its own append, which is lost if another leads before it is replicated. So only two things count
# as there: what was acknowledged (acks=all) to this attempt, and what consumers see (below the high
# watermark). Neither goes again: a leader that has forgotten the producer would take it once more.
# - A leader forgets a producer hours after its last record. So nothing is sent on the ground of an
# answer that is older than `TRUSTED_MS` by the wall clock: a paused attempt asks anew. - It forgets
# also as it restarts, where all records were deleted. So nothing is sent by a connection that was
# made behind the answer, nor to another leader than the one that gave it.


_IN_FLIGHT: Final = 5
"""As many batches of a producer as a broker remembers."""
TRUSTED_MS: Final = 3_600_000
_RETRY: Final = Retry(patience_s=120.0, backoff=Backoff(initial_ms=5, maximum_ms=500, jitter=0))
_LOOKS: Final = 20
"""So often, over some seconds, a partition is looked at that lacks rows."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the plan of a step says of a partition."""

    where: OutputPartition
    identity: Identity  # producer id and epoch of the batches
    first: int  # the sequence of the step's first row
    end: int  # an offset behind which the step's rows are
    # when the plan was written, epoch seconds, if no attempt before this one can have sent
    # anything; else None: then the leader is asked first
    begun_s: float | None = None


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch, from the row `begin` of the partition's rows on."""

    begin: int
    laid_out: KafkaBatch
    raw: bytes | None = None
    # the leader's, to be; None while the batch is not on its way
    answer: asyncio.Future[PartitionAnswer] | None = None

    @property
    def end(self) -> int:
        """The row behind its last."""
        return self.begin + self.laid_out.rows


class PartitionSender:
    """Sends rows to a partition: `add` as often as wanted, `end`; `run` beside, until all is done.

    `_batches` holds what is not known to be there, in order; those on their way first.
    """

    def __init__(
        self,
        leaders: Leaders,
        assignment: Assignment,
        on_gone: Callable[[int], None] = lambda _size: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._leaders = leaders
        self._where = assignment.where
        self._plan = assignment
        self._on_gone = on_gone
        self._clock = clock
        self._attempts = _RETRY.attempts()
        self._batches: deque[_Batch] = deque()
        self._rows = 0
        self._is_ended = False
        self._changed = asyncio.Event()
        self._asked_s = assignment.begun_s
        self._asked_of: int | None = None
        self._position = 0
        """So many of the rows are there for good, for all that is known."""
        self._is_pipelined = False
        self._looks = 0

    @property
    def waiting(self) -> int:
        """How many batches are not settled."""
        return len(self._batches)

    def add(self, batch: KafkaBatch) -> None:
        """Take the next batch."""
        self._batches.append(_Batch(self._rows, batch))
        self._rows += batch.rows
        self._changed.set()

    def end(self) -> None:
        """Take note that no batch follows; there was at least one."""
        self._is_ended = True
        self._changed.set()

    async def run(self) -> int:
        """Send all, and return how many rows they are, once the partition has them for good."""
        while not (self._is_ended and not self._batches):
            self._changed.clear()
            if not await self._advance():
                await self._changed.wait()
        if self._position > self._rows:
            raise OutputMismatchError(
                f"{self._where} holds {self._position} rows of the step, and it has {self._rows}: "
                f"{OLDER_COPY}"
            )
        return self._rows

    async def _advance(self) -> bool:
        """Do what can be done now; False when there is something to wait for."""
        oldest = self._batches[0] if self._batches else None
        if oldest is not None and oldest.answer is not None and oldest.answer.done():
            await self._take_answer(oldest)
            return True
        if not self._is_known():
            await self._drop_flight()
            await self._ask()
            return True
        self._let_go_of_known()
        batch = self._next()
        if batch is None:
            return self._is_ended and not self._batches
        await self._send(batch)
        return True

    def _is_known(self) -> bool:
        """Whether what this attempt knows of the partition is known of its leader, as it is."""
        if self._asked_s is None or (self._clock() - self._asked_s) * 1000 > TRUSTED_MS:
            return False
        connection = self._leaders.connection(self._where)
        if connection is None:
            return False
        node, since_s = connection
        if self._asked_of is None:
            # Nothing of the step was out anywhere; from here on it is this leader that is known.
            self._asked_of = node
        return since_s <= self._asked_s and self._asked_of == node

    def _next(self) -> _Batch | None:
        """Return the batch to send now; None without any."""
        in_flight = sum(one.answer is not None for one in self._batches)
        most = _IN_FLIGHT if self._is_pipelined else 1
        if in_flight == len(self._batches) or in_flight >= most:
            return None
        return self._batches[in_flight]

    def _let_go_of_known(self) -> None:
        """Let go of what is there for good."""
        while self._batches and self._batches[0].end <= self._position:
            self._settle()
        if not self._batches or self._batches[0].answer is not None:
            return
        first = self._batches[0]
        if first.begin > self._position:
            raise SendUnansweredError(
                f"{self._where} has lost rows that it had acknowledged: all rows are sent again"
            )
        if first.begin < self._position:
            # An attempt before this one has cut the rows otherwise.
            rest = first.laid_out.behind(self._position - first.begin)
            self._batches[0] = _Batch(self._position, rest)

    async def _send(self, batch: _Batch) -> None:
        if batch.raw is None:
            sequence = following(self._plan.first, batch.begin)
            stamp = Stamp(self._plan.identity.producer_id, self._plan.identity.epoch, sequence)
            batch.raw = idempotent_batch(
                batch.laid_out.records,
                batch.laid_out.rows,
                base_ms=batch.laid_out.base_ms,
                max_ms=batch.laid_out.max_ms,
                stamp=stamp,
            )
        try:
            batch.answer = self._leaders.produce(self._where, batch.raw)
        except FatalError:
            raise
        except BrokerError as error:
            await self._begin_anew(str(error))
        else:
            batch.answer.add_done_callback(lambda _answer: self._changed.set())

    async def _take_answer(self, batch: _Batch) -> None:
        assert batch.answer is not None
        try:
            code = batch.answer.result().code
        except FatalError:
            raise
        except BrokerError as error:
            await self._begin_anew(str(error))
            return
        if code == NO_ERROR:
            self._is_pipelined = True
            self._position = batch.end
            self._attempts.succeed()
            self._settle()
            return
        meaning = meaning_of(code)
        match meaning.answer:
            case Answer.FENCED:
                raise FencedError(
                    f"{self._where}: {meaning.name}: a newer process of the job has written there"
                )
            case Answer.TOO_LARGE | Answer.MISDATED:
                raise SendRefusedError(
                    f"{self._where} does not take a row of the step: {meaning.name}{meaning.hint}"
                )
            case Answer.REFUSED | Answer.FORBIDDEN | Answer.UNFIT:
                raise SinkError(f"{self._where}: {meaning.name}{meaning.hint}")
        await self._begin_anew(meaning.name)

    async def _begin_anew(self, why: str) -> None:
        """Drop what is in flight, and ask the leader, whoever it is by now, how far it has got."""
        await self._drop_flight()
        self._asked_s = None
        await self._attempts.pause(SendUnansweredError(f"{self._where}: {why}"))
        await self._leaders.refresh([self._where.topic])

    async def _drop_flight(self) -> None:
        answers = [one.answer for one in self._batches if one.answer is not None]
        await asyncio.gather(*answers, return_exceptions=True)
        for one in self._batches:
            one.answer = None

    async def _ask(self) -> None:
        """Learn how many of the rows are there."""
        plan, where = self._plan, self._where
        self._is_pipelined = False
        try:
            asked_of = await self._leaders.connect(where)
            asked_s = self._clock()
            told = (await self._leaders.states([where], plan.identity.producer_id))[where]
            if told is Untold.ASK_AGAIN:
                await self._begin_anew("its leader does not say what it holds")
                return
            rows = rows_there(where, told, plan.identity, plan.first)
            if rows != 0:
                rows = await self._rows_seen(rows)
        except LostRowsError as error:
            # A leader that was deposed, and does not know it yet, may say so, too.
            self._looks += 1
            if self._looks > _LOOKS:
                raise
            await self._begin_anew(str(error))
            return
        except FatalError:
            raise
        except BrokerError as error:
            await self._begin_anew(str(error))
            return
        self._looks = 0
        if rows > self._position:
            self._attempts.succeed()
        self._position, self._asked_s = rows, asked_s
        self._asked_of = asked_of

    async def _rows_seen(self, appended: int | None) -> int:
        """Return how many of the rows consumers see."""
        plan = self._plan
        try:
            last = await self._leaders.last_sequence_in_log(self._where, plan.identity, plan.end)
        except LogRangeError as error:
            if appended is not None:
                # Rows of the step were deleted, and only what is replicated can be.
                return appended
            raise OutputMismatchError(
                f"{error}, where the step began, and the brokers have forgotten who wrote there "
                "(retention, DeleteRecords or a lost disk has taken it): so it is unknown "
                f"which rows of the step were there. To continue, {ANEW}"
            ) from error
        return 0 if last is None else rows_until(self._where, last, plan.first)

    def _settle(self) -> None:
        self._on_gone(len(self._batches.popleft().laid_out.records))


# The rows of a step for some output partitions, written by one task of Spark's.
#
# Rows are laid out partition by partition. What is laid out goes to the leaders while the next rows
# are, several partitions in one request; see `sink.partition_sender` for one partition.


_MOST_WAITING: Final = 8 << 20
"""Bytes of rows that are laid out and not acknowledged."""
_GIVEN_AT_ONCE: Final = 1 << 20
"""After so many bytes the senders get their turn: the fewer requests the better."""
_TURNS: Final = 3
"""A sender begins in one turn of the event loop, and its request is written in the next."""


@dataclass(frozen=True, slots=True)
class BlockWriter:
    """Writes rows to partitions of a topic."""

    kafka: KafkaSettings = field(repr=False)  # how to reach the brokers
    topic: str
    plan: TopicPlan  # what the step's plan says of it
    identity: Identity  # producer id and epoch of the step
    # when the plan was written, epoch seconds, if nothing of the step can be out
    begun_s: float | None

    @classmethod
    def of(cls, kafka: KafkaSettings, topic: str, planned: Planned) -> Self:
        """Return what writes to a topic as a step's plan says."""
        plan = planned.plan
        return cls(kafka, topic, plan.topics[topic], plan.identity, planned.begun_s)

    def write(self, rows: Iterable[Batches], gives_way: GivesWay | None = None) -> dict[int, int]:
        """Write rows that are not there; how many each partition has, those that were included."""
        gives_way = gives_way or GivesWay(bool)
        connections = kept_connections(self.kafka, gives_way.bound)
        try:
            sent = self._sent(connections, rows, gives_way.heard)
            return connections.run(sent, gives_way.bound)
        except SendRefusedError:
            connections.forget_limit(self.topic)
            raise

    async def _sent(
        self, connections: Connections, rows: Iterable[Batches], heard: Callable[[], None]
    ) -> dict[int, int]:
        limit = min(self.plan.batch_bytes, await connections.batch_bytes_of(self.topic))
        return await send_block(connections.leaders, rows, limit, self.assignment, heard)

    def assignment(self, partition: int) -> Assignment:
        """Return what the plan says of a partition."""
        return Assignment(
            OutputPartition(self.topic, partition),
            self.identity,
            self.plan.firsts[partition],
            self.plan.ends[partition],
            None if attempt_number() else self.begun_s,
        )


async def send_block(
    leaders: Leaders,
    rows: Iterable[Batches],
    limit: int,
    assignment: Callable[[int], Assignment],
    heard: Callable[[], None] = lambda: None,
) -> dict[int, int]:
    """Send rows of several partitions; how many each has in the end.

    Args:
        leaders: Take the rows.
        rows: Of each partition.
        limit: How large a batch may be.
        assignment: Says what the plan says of a partition.
        heard: Called each time that it goes on.
    """
    waiting = _Waiting(heard)
    running: dict[int, asyncio.Task[int]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for partition, batches in rows:
                await waiting.until_fewer()
                sender: PartitionSender | None = None
                for batch in batches(limit):
                    if sender is None:
                        sender = PartitionSender(leaders, assignment(partition), waiting.settled)
                        running[partition] = group.create_task(sender.run())
                    sender.add(batch)
                    await waiting.add(batch, sender)
                if sender is not None:
                    sender.end()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {partition: sent.result() for partition, sent in running.items()}


class _Waiting:
    """Bytes that are laid out and not acknowledged."""

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._size = self._given = 0
        self._has_room = asyncio.Event()

    async def add(self, batch: KafkaBatch, sender: PartitionSender) -> None:
        """Count a batch that a sender has got, and wait while there are too many."""
        self._heard()
        size = len(batch.records)
        self._size += size
        self._given += size
        if self._given >= _GIVEN_AT_ONCE:
            self._given = 0
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        # A sender keeps one batch back until it knows whether another follows.
        while self._size > _MOST_WAITING and sender.waiting > 1:
            await self._settled_more()

    async def until_fewer(self) -> None:
        """Wait while there are too many: a partition may have one batch only, and be ended."""
        while self._size > _MOST_WAITING:
            await self._settled_more()

    async def _settled_more(self) -> None:
        self._has_room.clear()
        await self._has_room.wait()

    def settled(self, size: int) -> None:
        """Take note that a batch is settled."""
        self._heard()
        self._size -= size
        self._has_room.set()


# Rows into topics, in order and exactly once: each under a sequence of its own.


_ANY_TIMESTAMPS: Final = TopicTimestamps(are_kept=True, oldest_ms=None)


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """A topic to write to."""

    name: str
    partitions: int
    timestamps: TopicTimestamps = _ANY_TIMESTAMPS  # what it does with the timestamps of records


@dataclass(frozen=True, slots=True)
class Outputs:
    """Topics that a job writes to."""

    released: OutputTopic
    late: OutputTopic
    quarantine: OutputTopic


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Rows for a topic."""

    rows: Selection  # the rows, as tasks will find them in files, in their order
    topic: OutputTopic
    timestamps: OutputTimestamp = OutputTimestamp.NOW  # what the records' timestamps are taken from
    # whether a record whose timestamp is not its event time carries it in a header
    tells_event_time: bool = True
    reads: int | None = None  # how many bytes of files are read for it; None if that is not known


class TopicSink:
    """Writes rows to topics."""

    def __init__(
        self,
        workers: Workers,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        checkpoint: Checkpoint,
        outages: Outages,
    ) -> None:
        self._workers = workers
        self._kafka = kafka
        self._settings = settings
        self._outages = outages
        self._plans = StepPlanner(
            kafka, app=settings.app_name, documents=checkpoint, outages=outages
        )

    @property
    def sent(self) -> Mapping[str, Any] | None:
        """How far sequences have got, for the done mark; None before the first rows."""
        sent = self._plans.sent
        return None if sent is None else sent.to_document()

    def open(
        self,
        topics: Iterable[OutputTopic],
        *,
        newest: int,
        done: StepDone,
        takes_over: bool = False,
    ) -> None:
        """Compare what the topics hold with the checkpoint, before anything is written."""
        partitions = {topic.name: topic.partitions for topic in topics}
        sent = None if done.sent is None else SequenceEnds.from_document(done.sent)
        self._plans.open(
            partitions, newest=newest, done=done.step, sent=sent, takes_over=takes_over
        )

    def write(
        self, outgoing: Sequence[Outgoing], step: int, now_ms: int, clock_ms: int
    ) -> list[int]:
        """Write a step's rows, each partition of a topic in order; how many each topic has.

        Returns once the brokers have acknowledged all of it. A step writes once: repeated, what is
        there already is left out, and counted.
        """
        rules = [timestamp_rule(self._settings, out, now_ms, clock_ms) for out in outgoing]
        topics = {out.topic.name: out.topic.partitions for out in outgoing}
        planned = self._plans.of_step(step, topics)
        begun_s = planned.begun_s
        # A topic may have got more partitions since: where the step's rows go stays as planned.
        counts_of = [len(planned.plan.topics[out.topic.name].firsts) for out in outgoing]
        is_here = _are_small(outgoing)

        def attempt() -> list[tuple[_Send, dict[int, int]]]:
            nonlocal begun_s
            now = replace(planned, begun_s=begun_s)
            begun_s = None
            sends = [
                _Send(
                    place,
                    BlockWriter.of(self._kafka, out.topic.name, now),
                    out.rows.over(count),
                    block,
                    rule,
                )
                for place, (out, rule, count) in enumerate(
                    zip(outgoing, rules, counts_of, strict=True)
                )
                for block in blocks_for(self._workers, count, is_here=is_here)
            ]
            with errors_of_sending(self._workers, step, topics):
                written = self._here(sends) if is_here else self._by_tasks(sends, topics)
            return [*zip(sends, written, strict=True)]

        # What an earlier attempt has written is left out, and counted, as in a step repeated.
        found = self._outages.outlast(attempt, _passes)
        counts = [0] * len(outgoing)
        rows: dict[OutputPartition, int] = {}
        for send, written in found:
            counts[send.place] += sum(written.values())
            for partition, count in written.items():
                rows[OutputPartition(send.writer.topic, partition)] = count
        self._plans.written(step, rows)
        return counts

    def _here(self, sends: Sequence[_Send]) -> list[dict[int, int]]:
        return [send(GivesWay(lambda: self._outages.is_over)) for send in sends]

    def _by_tasks(self, sends: Sequence[_Send], topics: Mapping[str, int]) -> list[dict[int, int]]:
        # A broker that hangs holds a task for two minutes.
        with self._workers.ended_at(lambda: self._waits_in_vain(topics), 0):
            return self._workers.run(sends)

    def _waits_in_vain(self, topics: Mapping[str, int]) -> bool:
        """Whether the job is to stop, and a leader does not answer that its tasks may send to."""
        if not self._outages.is_over:
            return False
        gives_way = GivesWay(lambda: True)
        where = partitions_of(topics)
        try:
            connections = kept_connections(self._kafka, gives_way.bound)
            connections.run(connections.leaders.refresh(topics), gives_way.bound)
            told = connections.run(connections.leaders.ends(where), gives_way.bound)
        except BrokerError:
            return True
        return len(told) < len(where)


def timestamp_rule(
    settings: ReorderSettings, out: Outgoing, now_ms: int, clock_ms: int
) -> TimestampRule:
    """Return what timestamps the records of a step have."""
    topic = out.topic.timestamps
    if topic.newest_ms is not None:
        now_ms = min(now_ms, clock_ms + topic.newest_ms)
    floor_ms, oldest_ms = milliseconds(settings.timestamp_floor), topic.oldest_ms
    return TimestampRule(
        taken_from=out.timestamps,
        now_ms=now_ms,
        floor_ms=floor_ms if oldest_ms is None else min(floor_ms, oldest_ms),
        is_kept=topic.are_kept,
        tells_event_time=out.tells_event_time,
    )


@dataclass(frozen=True, slots=True)
class _Send:
    """Sends selected rows of files to some output partitions, in a task."""

    place: int  # which of the step's topics it is
    writer: BlockWriter
    rows: Selection
    partitions: range
    rule: TimestampRule

    def __call__(self, gives_way: GivesWay | None = None) -> dict[int, int]:
        """Send them; how many each partition has."""
        return self.writer.write(self.rows.each(self.partitions, self.rule), gives_way)


def _are_small(outgoing: Sequence[Outgoing]) -> bool:
    """Whether the driver sends it itself."""
    reads = [out.reads for out in outgoing]
    return None not in reads and is_small(sum(one or 0 for one in reads))


def _passes(error: Exception) -> str | None:
    return str(error) if isinstance(error, SinkUnansweredError) else None

"""The rows of one step for one output partition, sent by one attempt among perhaps many.

Every row has its sequence before any is sent. So attempts need no agreement among themselves: one
may have died and left batches on their way, one may have been given up and live on, one may be a
speculative copy or belong to a driver that was thought dead. Whatever they send, the broker appends
each sequence once, and refuses what does not follow its last. An attempt that is refused, or gets
no answer, drops what it has in flight, asks the leader how far the partition has got, and goes on
from there.

Four rules make that hold where a leader knows less than it might:

- A leader without any state of the producer takes whatever sequence comes first. So a batch goes
  alone until one is acknowledged, which every replica that may lead then has.
- A leader tells of its own append, which is lost if another leads before it is replicated. So only
  two things count as there: what was acknowledged (acks=all) to this attempt, and what consumers
  see (below the high watermark). Neither goes again: a leader that has forgotten the producer would
  take it once more.
- A leader forgets a producer hours after its last record. So nothing is sent on the ground of an
  answer that is older than `TRUSTED_MS` by the wall clock: a paused attempt asks anew.
- It forgets also as it restarts, where all records were deleted. So nothing is sent by a connection
  that was made after the answer, nor to another leader than the one that gave it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import Backoff, Retry
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
)
from sequitur.kafka.error_codes import NO_ERROR, Answer, meaning_of
from sequitur.kafka.producer_ids import Untold
from sequitur.kafka.record_batch import Stamp, idempotent_batch
from sequitur.kafka.record_format import following
from sequitur.pipelines.sink.step_plans import (
    ANEW,
    OLDER_COPY,
    rows_there,
    rows_until,
    topic_deleted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.kafka.identity import Identity
    from sequitur.kafka.leaders import Leaders
    from sequitur.kafka.partition import OutputPartition
    from sequitur.kafka.producer_ids import PartitionAnswer
    from sequitur.pipelines.rows.record_layout import KafkaBatch


_IN_FLIGHT: Final = 5
"""As many batches of a producer as a broker remembers."""
TRUSTED_MS: Final = 3_600_000
_RETRY: Final = Retry(patience_s=120.0, backoff=Backoff(initial_ms=5, maximum_ms=500, jitter=0))
_LOOKS: Final = 20
"""So often, over some seconds, a partition is looked at that lacks rows."""


@dataclass(frozen=True, slots=True)
class Assignment:
    where: OutputPartition
    identity: Identity  # producer id and epoch of the batches
    first: int  # the sequence of the step's first row
    end: int  # an offset behind which the step's rows are
    # when the plan was written, epoch seconds, if no earlier attempt can have sent
    # anything; else None: then the leader is asked first
    begun_s: float | None = None


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch whose first row is the row `begin` of the partition."""

    begin: int
    laid_out: KafkaBatch
    raw: bytes | None = None
    # the future of the leader's answer; None while the batch is not on its way
    answer: asyncio.Future[PartitionAnswer] | None = None

    @property
    def end(self) -> int:
        """The row behind its last row."""
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
        """Number of batches that are not settled."""
        return len(self._batches)

    def add(self, batch: KafkaBatch) -> None:
        self._batches.append(_Batch(self._rows, batch))
        self._rows += batch.rows
        self._changed.set()

    def end(self) -> None:
        """Note that no batch follows; there was at least one."""
        self._is_ended = True
        self._changed.set()

    async def run(self) -> int:
        """Send all rows; return how many they are, once the partition has them for good."""
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
        """Do what can be done now; False if there is something to wait for."""
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
        """Whether this attempt knows the partition from its present leader."""
        if self._asked_s is None or (self._clock() - self._asked_s) * 1000 > TRUSTED_MS:
            return False
        connection = self._leaders.connection(self._where)
        if connection is None:
            return False
        node, since_s = connection
        if self._asked_of is None:
            # No partition had rows of the step; from here on this is the known leader.
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
            # An earlier attempt has cut the rows differently.
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
        """Drop what is in flight, and ask the present leader how many rows it has."""
        await self._drop_flight()
        self._asked_s = None
        await self._attempts.pause(SendUnansweredError(f"{self._where}: {why}"))
        await self._leaders.refresh([self._where.topic])
        if self._leaders.is_deleted(self._where.topic):
            raise topic_deleted(self._where.topic)

    async def _drop_flight(self) -> None:
        answers = [one.answer for one in self._batches if one.answer is not None]
        await asyncio.gather(*answers, return_exceptions=True)
        for one in self._batches:
            one.answer = None

    async def _ask(self) -> None:
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
            # A deposed leader that does not know it yet may say so, too.
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
                # Rows of the step were deleted, and only replicated rows can be deleted.
                return appended
            raise OutputMismatchError(
                f"{error}, where the step began, and the brokers have forgotten who wrote there "
                "(retention, DeleteRecords or a lost disk has taken it): so it is unknown "
                f"which rows of the step were there. To continue, {ANEW}"
            ) from error
        return 0 if last is None else rows_until(self._where, last, plan.first)

    def _settle(self) -> None:
        self._on_gone(len(self._batches.popleft().laid_out.records))

"""Reading a partition's log from its leader, as a consumer does: where it ends, and its batches.

A consumer sees only what all in-sync replicas have (what is below the high watermark), and of a
transaction only what is committed, unless it asks for all.

Looking for events in a partition by their ids is needed when a broker has lost a producer's state
(which expires 24 hours after its last record, and is deleted with a topic or a truncated log), so
that only the log itself can tell what is in it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from sequitur.base.retry import Backoff, Retry
from sequitur.errors import FatalError, LogRangeError, RetriableError
from sequitur.kafka.error_codes import NO_ERROR, Action, Request, action_of, meaning_of
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.record_format import MAGIC, following
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.kafka.stored_batches import MOST_BYTES, batches_in, columns_in_pieces, seen

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from sequitur.kafka.identity import Identity
    from sequitur.kafka.stored_batches import Record, RecordColumns, StoredBatch


LATEST: Final = -1
EARLIEST: Final = -2
_ANY_REPLICA: Final = -1
_DEBUGGING_REPLICA: Final = -2
_REPLICATION: Final = Retry(most=20, backoff=Backoff(initial_ms=100, maximum_ms=100, jitter=0))
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
_FETCH_BYTES: Final = 8 << 20
FETCH_WAIT_MS: Final = 500
_OUT_OF_RANGE: Final = 1
_NAMES_A_REPLICA: Final = 11
"""The version of a fetch answer from which on it names a replica."""


async def log_ends(
    ask: Callable[[Any], Awaitable[Any]],
    partitions: Mapping[str, Iterable[int]],
    time_ms: int = LATEST,
) -> dict[tuple[str, int], int]:
    """Return the offset behind the last record that readers see, of partitions of one leader.

    Of another time it is the first offset that is not before it; -1 without one. Partitions whose
    end the broker cannot tell at the moment are left out.
    """
    wanted = [(topic, [(one, time_ms) for one in some]) for topic, some in partitions.items()]
    answer = await ask(OffsetRequest(_ANY_REPLICA, _READ_UNCOMMITTED, wanted))
    return {
        (topic, partition): int(offset)
        for topic, found in answer.topics
        for partition, code, _timestamp, offset, *_more in found
        if not _passes(code, topic, partition)
    }


async def until_replicated(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int
) -> None:
    """Wait until all in-sync replicas have all records that the leader has now."""
    end = await offset_at(ask, topic, partition, LATEST, replica=_DEBUGGING_REPLICA)
    attempts = _REPLICATION.attempts()
    while await offset_at(ask, topic, partition, LATEST) < end:
        await attempts.pause(
            RetriableError(f"{topic}-{partition}: its replicas are not in sync yet")
        )


async def offset_at(
    ask: Callable[[Any], Awaitable[Any]],
    topic: str,
    partition: int,
    time_ms: int,
    *,
    replica: int = _ANY_REPLICA,
) -> int:
    """Return the first offset from a time on, among replicated records or among all."""
    topics = [(topic, [(partition, time_ms)])]
    answer = await ask(OffsetRequest(replica, _READ_UNCOMMITTED, topics))
    for _topic, partitions in answer.topics:
        for _partition, code, _timestamp, offset, *_more in partitions:
            _check(code, topic, partition)
            return int(offset)
    raise RetriableError(f"{topic}-{partition}: the answer left it out")


@dataclass(frozen=True, slots=True)
class Fetched:
    """The part of a partition that a leader has sent, from an offset on."""

    where: SourcePartition
    offset: int
    next_offset: int  # where to go on: behind all that was sent, also unseen records
    batches: Sequence[StoredBatch]  # the batches that a consumer sees
    high_watermark: int
    last_stable: int  # where open transactions begin
    code: int = NO_ERROR
    sizes: Sequence[int] = ()  # bytes of all batches that were sent whole, also unseen ones
    replica: int | None = None  # the broker in this machine's rack to ask instead

    @property
    def is_all(self) -> bool:
        """Whether the log has no more committed records now."""
        return self.next_offset >= self.last_stable

    @property
    def is_out_of_range(self) -> bool:
        return self.code == _OUT_OF_RANGE

    def check(self) -> Fetched:
        """Raise the leader's error, if there is one."""
        _check(self.code, *self.where)
        return self

    def before(self, stop: int) -> Fetched:
        """Return the part before an offset."""
        if self.next_offset <= stop:
            return self
        whole = [one for one in self.batches if one.last_offset < stop]
        batches = self.batches[: len(whole) + 1]  # the last one kept may begin before `stop`
        return replace(self, next_offset=stop, batches=batches)

    def behind(self, stop: int) -> Fetched:
        """Return the part from an offset on."""
        batches = [one for one in self.batches if one.last_offset >= stop]
        return replace(self, offset=stop, batches=batches)

    def columns(
        self, most_bytes: int | None = None, piece_bytes: int = MOST_BYTES
    ) -> Iterator[RecordColumns]:
        """Yield the records in columns, of at most so many bytes once unpacked.

        A piece that has `piece_bytes` is given before more is unpacked.
        """
        with _naming(self.where):
            for some in columns_in_pieces(self.batches, most_bytes, piece_bytes):
                yield some.between(self.offset, self.next_offset)

    @property
    def is_whole(self) -> bool:
        """Whether its batches have no record beside its offsets, and are unpacked by columns."""
        batches = self.batches
        if not batches:
            return True
        begins, ends = batches[0].base_offset, batches[-1].last_offset
        is_cut = begins < self.offset or ends >= self.next_offset
        return not is_cut and all(batch.magic >= MAGIC for batch in batches)

    def rows(self) -> Iterator[Record]:
        with _naming(self.where):
            for batch in self.batches:
                for record in batch.rows():
                    if self.offset <= record.offset < self.next_offset:
                        yield record


@contextlib.contextmanager
def _naming(where: SourcePartition) -> Iterator[None]:
    """Have the error of a block that unpacks a partition's batches name the partition."""
    try:
        yield
    except RetriableError as error:
        raise RetriableError(f"{where.topic}-{where.partition}: {error}") from error


def together(
    answers: Iterable[Fetched], most_bytes: int | None = None, piece_bytes: int = MOST_BYTES
) -> Iterator[tuple[list[tuple[SourcePartition, int]], RecordColumns]]:
    """Yield the records of answers in columns, with how many of these are of which partition.

    They are in the order of the answers. To unpack a few batches takes nearly as long as to unpack
    a hundred, so whole answers are unpacked at once. For the bounds see `Fetched.columns`.
    """
    left = most_bytes
    for is_whole, some in groupby(answers, attrgetter("is_whole")):
        for parts, columns in (_of_whole if is_whole else _one_by_one)(some, left, piece_bytes):
            if left is not None:
                left -= columns.size_bytes
            yield parts, columns


def _one_by_one(
    answers: Iterable[Fetched], left: int | None, piece_bytes: int
) -> Iterator[tuple[list[tuple[SourcePartition, int]], RecordColumns]]:
    for one in answers:
        for columns in one.columns(left, piece_bytes):
            if left is not None:
                left -= columns.size_bytes
            yield [(one.where, len(columns))], columns


def _of_whole(
    answers: Iterable[Fetched], left: int | None, piece_bytes: int
) -> Iterator[tuple[list[tuple[SourcePartition, int]], RecordColumns]]:
    answers = list(answers)
    batches = [(one.where, batch) for one in answers for batch in one.batches]
    counts = iter([(where, batch.count) for where, batch in batches])
    try:
        for columns in columns_in_pieces([batch for _, batch in batches], left, piece_bytes):
            parts: list[tuple[SourcePartition, int]] = []
            rows = 0
            while rows < len(columns):  # a piece ends with a batch
                where, count = next(counts)
                rows += count
                if parts and parts[-1][0] == where:
                    count += parts.pop()[1]
                parts.append((where, count))
            yield parts, columns
    except RetriableError:
        # Alone, the damaged answer says of which partition it is, and at which offsets.
        for _ in _one_by_one(answers, None, piece_bytes):
            pass
        raise


async def fetch(
    ask: Callable[[Any], Awaitable[Any]],
    places: Mapping[SourcePartition, int],
    *,
    wait_ms: int = 0,
    partition_bytes: int | Mapping[SourcePartition, int] = _FETCH_BYTES,
    most_bytes: int = _FETCH_BYTES,
    is_committed: bool = True,
    rack: str = "",
) -> dict[SourcePartition, Fetched]:
    """Return what a broker sends of each partition, from an offset on.

    A leader that is told a rack may name a replica there, and sends nothing then (KIP-392).

    Sizes are as in the log, packed; a leader sends a batch at least, of the first that has any.
    Where it has nothing for any partition, it waits a moment for more.
    """
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for where, offset in places.items():
        most = partition_bytes if isinstance(partition_bytes, int) else partition_bytes[where]
        topics.setdefault(where.topic, []).append((where.partition, offset, most))
    level = _READ_COMMITTED if is_committed else _READ_UNCOMMITTED
    answer = await ask(FetchRequest(wait_ms, 1, most_bytes, level, list(topics.items()), rack))
    found = {}
    for topic, partitions in answer.topics:
        for partition, code, high_watermark, last_stable, *others, data in partitions:
            where = SourcePartition(topic, partition)
            if code != NO_ERROR:
                _passes(code, topic, partition)
            # Version 11 has a preferred replica between these; -1 for none.
            aborted, replica = others[-1], -1
            if answer.API_VERSION >= _NAMES_A_REPLICA:
                aborted, replica = others[-2:]
            with _naming(where):
                batches = list(batches_in(bytes(data or b"")))
            offset = places[where]
            found[where] = Fetched(
                where,
                offset,
                max([offset, *(batch.last_offset + 1 for batch in batches)]),
                list(seen(batches, (is_committed and aborted) or ())),
                high_watermark,
                last_stable,
                code,
                [len(batch.raw) for batch in batches],
                None if replica < 0 else replica,
            )
    return found


async def fetch_one(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, offset: int, **how: Any
) -> Fetched:
    where = SourcePartition(topic, partition)
    found = (await fetch(ask, {where: offset}, **how)).get(where)
    if found is None:
        raise RetriableError(f"{topic}-{partition}: the answer left it out")
    return found.check()


async def batches_behind(
    ask: Callable[[Any], Awaitable[Any]],
    topic: str,
    partition: int,
    offset: int,
    end: int | None = None,
) -> AsyncIterator[Fetched]:
    """Yield the log from an offset up to an end, with aborted transactions."""
    while end is None or offset < end:
        found = await fetch_one(
            ask, topic, partition, offset, wait_ms=FETCH_WAIT_MS, is_committed=False
        )
        end = found.high_watermark if end is None else end
        if found.high_watermark < end:
            # A new leader learns late how far replication has got.
            raise RetriableError(f"{topic}-{partition}: its replicas are not in sync yet")
        offset = found.next_offset
        yield found


async def timestamp_from(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, offset: int, end: int
) -> int | None:
    """Return the timestamp of the first committed record from an offset on, None without one."""
    while offset < end:
        # The broker sends at least one batch, and so no more than that.
        found = await fetch_one(ask, topic, partition, offset, partition_bytes=1, most_bytes=1)
        for record in found.rows():
            return record.timestamp
        if found.next_offset <= offset:
            return None
        offset = found.next_offset
    return None


async def last_sequence_in_log(
    ask: Callable[[Any], Awaitable[Any]],
    topic: str,
    partition: int,
    identity: Identity,
    offset: int,
) -> int | None:
    """Return an identity's last sequence that readers see, according to batches' headers."""
    await until_replicated(ask, topic, partition)
    start = await offset_at(ask, topic, partition, EARLIEST)
    end = await offset_at(ask, topic, partition, LATEST)
    wanted, last = (identity.producer_id, identity.epoch), None
    # Usually nobody else writes there, and the last batch is enough.
    for begin in (max(start, end - 1), max(start, offset)):
        async for found in batches_behind(ask, topic, partition, begin, end):
            for batch in found.batches:
                if (batch.producer_id, batch.producer_epoch) == wanted:
                    last = following(batch.base_sequence, batch.last_offset - batch.base_offset)
        if last is not None:
            return last
    if not start <= offset <= end:
        raise LogRangeError(
            f"{topic}-{partition} holds offsets from {start} on, up to {end}, and not {offset}"
        )
    return None


def _passes(code: int, topic: str, partition: int) -> bool:
    """Tell whether an error passes by itself. Raise an error that does not."""
    action = action_of(Request.READ, code)
    if action in (Action.DONE, Action.RETRY):
        return action is Action.RETRY
    raise FatalError(f"reading {topic}-{partition}: {meaning_of(code).name}")


def _check(code: int, topic: str, partition: int) -> None:
    if _passes(code, topic, partition):
        raise RetriableError(f"reading {topic}-{partition}: {meaning_of(code).name}")


_NOTHING_SINCE: Final = -1


async def find_events(
    ask: Callable[[Any], Awaitable[Any]],
    topic: str,
    partition: int,
    wanted: Collection[bytes],
    since_ms: int,
) -> set[bytes]:
    """Return the event ids of `wanted` that a partition holds.

    What the leader alone has may still become visible: so this waits until all in-sync replicas
    have what the leader has now.
    """
    await until_replicated(ask, topic, partition)
    found: set[bytes] = set()
    offset = await offset_at(ask, topic, partition, max(since_ms, 0))
    if offset == _NOTHING_SINCE:
        return found
    async for some in batches_behind(ask, topic, partition, offset):
        found.update(
            value
            for batch in some.batches
            for record in batch.rows()
            for name, value in record.headers
            if name == EVENT_ID_HEADER and value is not None and value in wanted
        )
        if len(found) == len(wanted):
            break
    return found

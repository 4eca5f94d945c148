"""Reading a partition's log from its leader, as a consumer does: where it ends, and its batches.

A consumer sees only what all in-sync replicas have (what is below the high watermark).

Looking for events in a partition by their ids, as a consumer reads it.

Needed when a broker has lost a producer's state (which expires 24 hours after its last record, and
is deleted with a topic or a truncated log), so that only the log itself can tell what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka import errors as kafka_errors
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from sequitur.base.retry import Backoff, Retry
from sequitur.errors import FatalError, LogRangeError, RetriableError
from sequitur.kafka.error_codes import Action, Request, action_of, meaning_of
from sequitur.kafka.record_format import following
from sequitur.kafka.records import EVENT_ID_HEADER

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


LATEST: Final = -1
EARLIEST: Final = -2
_ANY_REPLICA: Final = -1
_DEBUGGING_REPLICA: Final = -2
_REPLICATION: Final = Retry(most=20, backoff=Backoff(initial_ms=100, maximum_ms=100, jitter=0))
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
_FETCH_BYTES: Final = 8 << 20
_FETCH_WAIT_MS: Final = 500
_NAMES_A_REPLICA: Final = 11
"""Version of a fetch answer."""


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
    """Wait until all in-sync replicas have what the partition's leader has now."""
    end = await offset_at(ask, topic, partition, LATEST, replica=_DEBUGGING_REPLICA)
    attempts = _REPLICATION.attempts()
    while await offset_at(ask, topic, partition, LATEST) < end:
        await attempts.pause(RetriableError(f"{topic}-{partition}: its replicas lag behind"))


async def offset_at(
    ask: Callable[[Any], Awaitable[Any]],
    topic: str,
    partition: int,
    time_ms: int,
    *,
    replica: int = _ANY_REPLICA,
) -> int:
    """Return the first offset from a time on, of what is replicated or of all that there is."""
    topics = [(topic, [(partition, time_ms)])]
    answer = await ask(OffsetRequest(replica, _READ_UNCOMMITTED, topics))
    for _topic, partitions in answer.topics:
        for _partition, code, _timestamp, offset, *_more in partitions:
            _check(code, topic, partition)
            return int(offset)
    raise RetriableError(f"{topic}-{partition}: the answer left it out")


async def batches_behind(
    ask: Callable[[Any], Awaitable[Any]],
    topic: str,
    partition: int,
    offset: int,
    end: int | None = None,
) -> AsyncIterator[Any]:
    """Yield the batches from an offset on, up to an end."""
    while end is None or offset < end:
        answer = await ask(
            FetchRequest(
                _FETCH_WAIT_MS, 1, _FETCH_BYTES, _READ_UNCOMMITTED,
                [(topic, [(partition, offset, _FETCH_BYTES)])],
            )
        )  # fmt: skip
        for _topic, partitions in answer.topics:
            for _partition, code, high_watermark, *_, data in partitions:
                _check(code, topic, partition)
                end = high_watermark if end is None else end
                if high_watermark < end:
                    # A new leader learns late how much is replicated.
                    raise RetriableError(f"{topic}-{partition}: its replicas lag behind")
                records = MemoryRecords(bytes(data or b""))
                while records.has_next() and (batch := records.next_batch()) is not None:
                    offset = max(offset, batch.next_offset)
                    yield batch


@dataclass(frozen=True, slots=True)
class Committed:
    """Records that a reader of committed transactions sees."""

    # key and value of each, in the order of the log
    records: Sequence[tuple[bytes | None, bytes | None]]
    offsets: Sequence[int]  # that of each
    next_offset: int
    is_all: bool  # whether the log has no more of them at the moment


async def committed_behind(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, offset: int
) -> Committed:
    """Return some of the records from an offset on; wait a moment where there are none."""
    found = await _fetched(ask, topic, partition, offset, wait_ms=_FETCH_WAIT_MS, size=_FETCH_BYTES)
    records = list(found.records())
    return Committed(
        [(record.key, record.value) for record in records],
        [int(record.offset) for record in records],
        found.next_offset,
        found.next_offset >= found.last_stable,
    )


async def timestamp_from(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, offset: int, end: int
) -> int | None:
    """Return the timestamp of the first committed record from an offset on."""
    while offset < end:
        # The broker sends a batch at least, and so no more than that.
        found = await _fetched(ask, topic, partition, offset, wait_ms=0, size=1)
        for record in found.records():
            return int(record.timestamp)
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
    """Return an identity's last sequence that readers see, by batches' headers."""
    await until_replicated(ask, topic, partition)
    start = await offset_at(ask, topic, partition, EARLIEST)
    end = await offset_at(ask, topic, partition, LATEST)
    last = None
    # Most often nobody else writes there, and the last batch of all tells.
    for begin in (max(start, end - 1), max(start, offset)):
        async for batch in batches_behind(ask, topic, partition, begin, end):
            if (batch.producer_id, batch.producer_epoch) == (identity.producer_id, identity.epoch):
                last = following(batch.base_sequence, batch.last_offset_delta)
        if last is not None:
            return last
    if not start <= offset <= end:
        raise LogRangeError(
            f"{topic}-{partition} holds offsets from {start} on, up to {end}, and not {offset}"
        )
    return None


class _Fetched:
    """What a broker has sent of a partition, for a reader of committed records."""

    def __init__(self, name: str, found: PartitionRecords, last_stable: int) -> None:
        self._name = name
        self._found = found
        self.last_stable = last_stable

    def records(self) -> Iterator[Any]:
        """Yield the records, each decoded when it is asked for."""
        try:
            yield from self._found
        except kafka_errors.KafkaError as error:
            raise RetriableError(f"reading {self._name}: {error}") from error

    @property
    def next_offset(self) -> int:
        """Where to go on; behind what was yielded."""
        return int(self._found.next_fetch_offset)


async def _fetched(
    ask: Callable[[Any], Awaitable[Any]],
    topic: str,
    partition: int,
    offset: int,
    *,
    wait_ms: int,
    size: int,
) -> _Fetched:
    """Return the committed records that a broker sends from an offset on."""
    answer = await ask(
        FetchRequest(
            wait_ms, 1, size, _READ_COMMITTED,
            [(topic, [(partition, offset, size)])],
        )
    )  # fmt: skip
    for _topic, partitions in answer.topics:
        for _partition, code, _high_watermark, last_stable, *others, data in partitions:
            _check(code, topic, partition)
            # Version 11 names a replica to read from between these.
            aborted = others[-2] if answer.API_VERSION >= _NAMES_A_REPLICA else others[-1]
            found = PartitionRecords(
                TopicPartition(topic, partition), MemoryRecords(bytes(data or b"")), aborted,
                offset, None, None, True, _READ_COMMITTED,
            )  # fmt: skip
            return _Fetched(f"{topic}-{partition}", found, last_stable)
    raise RetriableError(f"{topic}-{partition}: the answer left it out")


def _passes(code: int, topic: str, partition: int) -> bool:
    """Whether an error passes by itself; one that does not is raised."""
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
    async for batch in batches_behind(ask, topic, partition, offset):
        if not batch.is_control_batch:
            found |= _ids_of(batch, wanted)
        if len(found) == len(wanted):
            break
    return found


def _ids_of(batch: Any, wanted: Collection[bytes]) -> set[bytes]:
    """Return which of the wanted ids stand in a batch's records."""
    ids = (
        bytes(value)
        for record in batch
        for name, value in record.headers
        if name == EVENT_ID_HEADER and value is not None
    )
    return {event_id for event_id in ids if event_id in wanted}

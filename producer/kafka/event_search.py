"""Looking for events in a partition by their ids, as a consumer reads it.

Needed when a broker has lost a producer's state (which expires 24 hours after its last record, and
is deleted with a topic or a truncated log), so that only the log itself can tell what is in it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from sequitur.producer._errors import FatalError, RetriableError
from sequitur.producer._event_id import EVENT_ID_HEADER
from sequitur.producer.kafka.error_codes import Action, Request, action_of, meaning_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

_ANY_REPLICA: Final = -1
_DEBUGGING_REPLICA: Final = -2
_LATEST: Final = -1
_REPLICATION_POLLS: Final = 20
_REPLICATION_POLL_S: Final = 0.1
_READ_UNCOMMITTED: Final = 0
_NOTHING_SINCE: Final = -1
_FETCH_BYTES: Final = 8 << 20
_FETCH_WAIT_MS: Final = 500


async def find_events(
    ask: Callable[[Any], Awaitable[Any]],
    topic: str,
    partition: int,
    wanted: Collection[bytes],
    since_ms: int,
) -> set[bytes]:
    """Return the event ids of `wanted` that a partition holds.

    A consumer sees only what all in-sync replicas have, and what the leader alone has may still
    become visible. So this waits until all of them have what the leader has now.

    Args:
        ask: Sends a request to the partition's leader.
        topic: The topic.
        partition: The partition.
        wanted: Encoded event ids.
        since_ms: No record that is looked for has an older timestamp.

    Raises:
        RetriableError: The leader does not answer, or is none any more.
        FatalError: The topic may not be read.
    """
    await until_replicated(ask, topic, partition)
    found: set[bytes] = set()
    offset = await _offset_since(ask, topic, partition, since_ms)
    end = None
    while offset is not None and (end is None or offset < end):
        answer = await ask(
            FetchRequest(
                _FETCH_WAIT_MS, 1, _FETCH_BYTES, _READ_UNCOMMITTED,
                [(topic, [(partition, offset, _FETCH_BYTES)])],
            )
        )  # fmt: skip
        for _topic, partitions in answer.topics:
            for _partition, code, high_watermark, *_, records in partitions:
                _check(code, topic, partition)
                end = high_watermark if end is None else end
                offset = _take(records, offset, wanted, found)
        if len(found) == len(wanted):
            break
    return found


async def until_replicated(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int
) -> None:
    """Wait until all in-sync replicas have what the partition's leader has now.

    Raises:
        RetriableError: They do not within some seconds, or the leader does not answer.
        FatalError: The topic may not be read.
    """
    end = await _offset_at(ask, topic, partition, _LATEST, replica=_DEBUGGING_REPLICA)
    for _ in range(_REPLICATION_POLLS):
        if await _offset_at(ask, topic, partition, _LATEST) >= end:
            return
        await asyncio.sleep(_REPLICATION_POLL_S)
    raise RetriableError(f"{topic}-{partition}: its replicas lag behind")


async def _offset_since(
    ask: Callable[[Any], Awaitable[Any]], topic: str, partition: int, since_ms: int
) -> int | None:
    offset = await _offset_at(ask, topic, partition, max(since_ms, 0))
    return None if offset == _NOTHING_SINCE else offset


async def _offset_at(
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


def _take(data: bytes, offset: int, wanted: Collection[bytes], found: set[bytes]) -> int:
    """Look through what was fetched, and give the offset to go on from."""
    records = MemoryRecords(bytes(data or b""))
    while records.has_next():
        batch = records.next_batch()
        if batch is None:
            break
        offset = max(offset, batch.next_offset)
        if not batch.is_control_batch:
            for record in batch:
                for name, value in record.headers:
                    if name == EVENT_ID_HEADER and value is not None and bytes(value) in wanted:
                        found.add(bytes(value))
    return offset


def _check(code: int, topic: str, partition: int) -> None:
    action = action_of(Request.READ, code)
    if action is not Action.DONE:
        sentence = f"reading {topic}-{partition}: {meaning_of(code).name}"
        raise (RetriableError if action is Action.RETRY else FatalError)(sentence)

"""Looking for events in a partition by their ids, as a consumer reads it.

Needed when a broker has lost a producer's state (which expires 24 hours after its last record, and
is deleted with a topic or a truncated log), so that only the log itself can tell what is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sequitur.kafka.event_id import EVENT_ID_HEADER
from sequitur.kafka.log_reading import batches_behind, offset_at, until_replicated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

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

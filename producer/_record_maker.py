"""Records out of what callers give: serialized, checked, and put where a partitioner wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sequitur.producer._record import Record, checked

if TYPE_CHECKING:
    from sequitur.kafka.record_batch import Header

Serializer: TypeAlias = Callable[[Any], bytes]
"""Makes the bytes of a key or value. None is not given to it: it stays None, a tombstone."""

Partitioner: TypeAlias = Callable[[bytes | None, list[int], list[int]], int]
"""Chooses a partition, as aiokafka's: of the key's bytes, all partitions, those with a leader."""

_NO_HEADERS: Final = ()


class RecordMaker:
    """Makes the records of one producer."""

    def __init__(
        self,
        *,
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
        partitioner: Partitioner | None,
        has_leader: Callable[[str, int], bool],
    ) -> None:
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._has_leader = has_leader
        self._serializes = key_serializer is not None or value_serializer is not None
        self.is_plain = not self._serializes and partitioner is None

    def record(
        self,
        value: Any,
        key: Any = None,
        headers: Sequence[Header] | None = _NO_HEADERS,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """Return an event as a record."""
        if self._serializes:
            if self._value_serializer is not None and value is not None:
                value = self._value_serializer(value)
            if self._key_serializer is not None and key is not None:
                key = self._key_serializer(key)
        if headers is None:
            headers = _NO_HEADERS
        return checked(Record(value, key, headers, partition, timestamp_ms))

    def record_of(self, event: Any) -> Record:
        """Return the record of what `send_many` is given: a `Record`, or a value by itself."""
        if not isinstance(event, Record):
            return self.record(event)
        return self.record(
            event.value, event.key, event.headers, event.partition, event.timestamp_ms
        )

    def placed(self, record: Record, topic: str, partitions: int) -> Record:
        """Return the record with the partition that the partitioner chooses, if there is one."""
        if self._partitioner is None or record.partition is not None:
            return record
        everywhere = list(range(partitions))
        led = [partition for partition in everywhere if self._has_leader(topic, partition)]
        chosen = self._partitioner(record.key, everywhere, led or everywhere)
        if chosen not in everywhere:
            raise ValueError(
                f"the partitioner gave {chosen!r}: topic {topic} has 0 to {partitions - 1}"
            )
        return Record(record.value, record.key, record.headers, int(chosen), record.timestamp_ms)

"""Records for a reorder job, and what stands in them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers = list[tuple[str, str | bytes | None]]


class Written(Protocol):
    """A record that a job has written."""

    @property
    def partition(self) -> int: ...

    @property
    def value(self) -> bytes | None: ...


R = TypeVar("R", bound=Written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A record to be produced."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int = -1
    timestamp_ms: int = 0


def event(time_ms: object, key: str = "k", partition: int = -1, **more: object) -> Event:
    value = json.dumps({"at": time_ms, **more}).encode()
    return Event(value=value, key=key.encode(), partition=partition)


def time_of(record: Written) -> Any:
    return json.loads(record.value or b"")["at"]


def by_partition(records: Iterable[R]) -> dict[int, list[R]]:
    found: defaultdict[int, list[R]] = defaultdict(list)
    for record in records:
        found[record.partition].append(record)
    return dict(found)

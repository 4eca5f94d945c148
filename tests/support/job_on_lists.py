"""A random history for `ReorderTester`, and what its documents say, to hold against Spark's."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.reorder import ReorderSettings
from tests.support.reorder_histories import MAX_FUTURE_SKEW_MS
from tests.support.reorder_reference import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.support.reorder_histories import History, HistoryStep

PLACE: Final = "place"
_UNLIKE: Final = frozenset({
    *("name", "life", "owner"),  # names, and who has them
    *("size_bytes", "seconds", "stamped_ms", "logged_ms"),
    *("cluster", "identity"),  # of the broker, and of a life's producer there
})  # fmt: skip
"""What differs in documents of one step, whoever decided it."""


def job_on_lists(history: History, **more: Any) -> ReorderSettings:
    """Return the settings of a history; topics are `in` and `out`."""
    return ReorderSettings.model_validate(
        {
            "input_topics": ["in"],
            "output_topic": "out",
            "checkpoint": "none",
            "event_time": "json:at",
            "delay": timedelta(milliseconds=history.delay_ms),
            "idle_timeout": timedelta(milliseconds=history.idle_timeout_ms),
            "max_future_skew": timedelta(milliseconds=MAX_FUTURE_SKEW_MS),
            **more,
        }
    )


def rows_of(
    step: HistoryStep, topic: str, offsets: dict[tuple[str, int], int]
) -> tuple[list[dict[str, Any]], list[Record]]:
    """Return the rows of a step for the tester, and the same for the reference.

    The offsets, which grow, are where the partitions end.
    """
    rows: list[dict[str, Any]] = []
    records: list[Record] = []
    for sent in step.sent:
        where = topic, sent.partition
        offset = offsets[where]
        offsets[where] += 1
        records.append(Record(*where, offset, sent.key, sent.value.encode()))
        headers = [(PLACE, f"{sent.partition}:{offset}")]
        rows.append(
            {
                "key": sent.key,
                "value": sent.value,
                "headers": headers,
                "topic": topic,
                "partition": sent.partition,
            }
        )
    return rows, records


def alike(found: Any) -> Any:
    """Return a document without what differs whoever wrote it."""
    if isinstance(found, list):
        return list(map(alike, found))
    if isinstance(found, dict):
        return {
            name: _RULES.get(name, alike)(one) for name, one in found.items() if name not in _UNLIKE
        }
    return found


def documents_in(folder: Path) -> list[Any]:
    """Return the documents of a folder of a checkpoint, as `alike` does."""
    return [alike(json.loads(one.read_text())) for one in sorted(folder.iterdir())]


def _in_all(files: Mapping[str, int]) -> int:
    """Return the rows of all files, however many these are."""
    return sum(files.values())


_RULES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "topics": sorted,  # else their ids, and the sequences of a life's producer
    "judged": _in_all,
    "repeats": _in_all,
}

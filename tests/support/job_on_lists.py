"""A random history for `ReorderTester`, and what its documents say, to hold against Spark's."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer import ReorderSettings
from tests.support.reorder_histories import MAX_FUTURE_SKEW_MS
from tests.support.reorder_reference import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.reorder_histories import History, HistoryStep

PLACE: Final = "place"
_OF_A_RUN: Final = (
    *("step", "rows", "min_event_time_ms", "max_event_time_ms", "behind", "max_behind_ms"),
)
_OF_A_STEP: Final = (
    *("step", "kind", "batch_id", "previous_frontier_ms", "frontier_ms", "clock", "planned"),
    *("staged", "before", "rescued", "duplicates", "late_policy", "learned", "deduplicated_ms"),
    "counted",
)


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


def decided(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a step has decided, without names of files and who wrote them."""
    document = json.loads(json.dumps(document))
    runs = [{name: run[name] for name in _OF_A_RUN} for run in document["runs"]]
    return {**{name: document.get(name) for name in _OF_A_STEP}, "runs": runs}


def decided_in(folder: Path) -> list[dict[str, Any]]:
    """Return what the steps of a checkpoint have decided."""
    documents = sorted((folder / "frontier").iterdir())
    return [decided(json.loads(one.read_text())) for one in documents]


def done_in(folder: Path) -> list[dict[str, int]]:
    """Return the counts after each step of a checkpoint."""
    documents = sorted((folder / "done").iterdir())
    return [json.loads(one.read_text())["totals"] for one in documents]

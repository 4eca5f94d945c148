"""What Spark and Kafka give is held against the log."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.step_log import StepEntry, StepKind, Totals
from sequitur.errors import CheckpointError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.job_input import check_batch, check_start, topic_ids
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_IDS = {"in": "first", "more": "second"}


class _Topics:
    """Topics and their ids."""

    def __init__(self, ids: dict[str, str]) -> None:
        self._ids = ids

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self._ids[topic] for topic in topics if topic in self._ids}


def _job(root: Path, ids: dict[str, str] | None = None) -> Any:
    topics = _Topics(_IDS if ids is None else ids)
    return SimpleNamespace(checkpoint=Checkpoint(LocalStorage(root)), topics=topics)


def _plan(root: Path, batch_id: int, offsets: dict[str, dict[str, int]]) -> None:
    folder = root / "spark" / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(batch_id)).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")


def _entry(batch_id: int) -> StepEntry:
    """Two partitions were read, up to offsets 7 and 3."""
    return StepEntry(
        step=5,
        kind=StepKind.TICK,
        batch_id=batch_id,
        previous_frontier_ms=0,
        clock=EventClock(),
        counts=Totals(),
        runs=(),
        before=Totals(),
        logged_ms=0,
        planned={SourcePartition("in", 0): 7, SourcePartition("more", 1): 3},
        topics=_IDS,
    )


_LOGGED = {"in": {"0": 7}, "more": {"1": 3}}
_OTHERS = [
    {"in": {"0": 8}, "more": {"1": 3}},
    {"in": {"0": 7}},
    {"in": {"0": 7, "1": 1}, "more": {"1": 3}},
]


def test_batch_as_it_was_logged_is_taken(tmp_path: Path) -> None:
    """Given again, or followed by the next one."""
    _plan(tmp_path, 2, _LOGGED)
    job = _job(tmp_path)
    for batch_id in (2, 3):
        check_batch(job, _entry(2), batch_id)
    check_start(job, _entry(2))


@pytest.mark.promise("order-spark-part-checkpoint")
@pytest.mark.parametrize("offsets", _OTHERS)
def test_batch_that_ends_elsewhere_is_refused(
    tmp_path: Path, offsets: dict[str, dict[str, int]]
) -> None:
    """Given again it would be taken for read, followed by the next it would leave a hole."""
    _plan(tmp_path, 2, offsets)
    job = _job(tmp_path)
    with pytest.raises(CheckpointError, match=r"has planned batch 2 again.*--reset-input"):
        check_batch(job, _entry(2), 2)
    with pytest.raises(CheckpointError, match="has planned batch 2 again"):
        check_batch(job, _entry(2), 3)
    with pytest.raises(CheckpointError, match="has planned batch 2 again"):
        check_start(job, _entry(2))


@pytest.mark.promise("order-spark-part-checkpoint")
@pytest.mark.parametrize("batch_id", [0, 1, 4])
def test_batch_that_is_neither_the_last_nor_the_next_is_refused(
    tmp_path: Path, batch_id: int
) -> None:
    """Spark's part is older than the log, or another's."""
    with pytest.raises(CheckpointError, match=f"begins batch {batch_id}, but batch 2 is logged"):
        check_batch(_job(tmp_path), _entry(2), batch_id)


@pytest.mark.promise("order-spark-part-checkpoint")
def test_plan_that_is_gone_is_refused_when_a_batch_follows_it(tmp_path: Path) -> None:
    """At the start it may be missing: Spark is going to plan the batch anew, and is asked then."""
    job = _job(tmp_path)
    check_start(job, _entry(2))
    with pytest.raises(CheckpointError, match="spark/offsets/2, the plan of a batch, is gone"):
        check_batch(job, _entry(2), 3)


@pytest.mark.promise("order-frontier-gone-restored")
def test_batch_without_a_log_is_the_first_or_refused(tmp_path: Path) -> None:
    """Whatever is lost of Spark's commits, too: rows before it would be passed over."""
    job = _job(tmp_path)
    check_batch(job, None, 0)
    with pytest.raises(CheckpointError, match=r"got to batch 1, but .* is gone\. Put frontier/"):
        check_batch(job, None, 1)


def test_first_batch_behind_a_reset_has_none_before_it(tmp_path: Path) -> None:
    job = _job(tmp_path)
    check_start(job, _entry(-1))
    check_batch(job, _entry(-1), 0)


def test_topic_with_another_id_is_refused(tmp_path: Path) -> None:
    assert topic_ids(_job(tmp_path), None, ["in"]) == {"in": "first"}
    found = topic_ids(_job(tmp_path, {"in": "first", "new": "third"}), _entry(2), ["in", "new"])
    assert found == {**_IDS, "new": "third"}
    with pytest.raises(
        CheckpointError, match=r"topic 'in' is not .*: its id is other, and was first.*--reset"
    ):
        check_start(_job(tmp_path, {"in": "other"}), _entry(2))

"""An output topic that has gained partitions: what the log knows, and where keys are looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.event_time import LATE
from sequitur.consumer.lateness import LateJudge
from sequitur.consumer.step_log import PartitionCounts
from sequitur.consumer.topology import BaseBolt, BasicBolt, TopologyBuilder
from sequitur.errors import CheckpointError, TopologyFileError
from sequitur.pipelines.ordering.opening import known_counts
from sequitur.pipelines.ordering.runs import FoldTask, JudgeTask
from sequitur.pipelines.rows.release import Part, RunRows
from sequitur.pipelines.sink.sink import OutputTopic
from sequitur.pipelines.topology.topology_file import check_growth
from tests.support.parquet_files import parquet_files
from tests.support.staged_rows import BASE_MS, OUTPUTS, Row, staged

if TYPE_CHECKING:
    from pathlib import Path

_CUT = 15
_COUNTS = PartitionCounts((OUTPUTS - 1, OUTPUTS), (BASE_MS + _CUT,))


def _row(time: int, offset: int) -> Row:
    return Row("t", 0, offset, b"a", time)


@pytest.mark.promise("order-output-topic-gains")
@pytest.mark.parametrize("is_folded", [False, True])
def test_key_is_looked_up_by_each_number(tmp_path: Path, *, is_folded: bool) -> None:
    """A row up to the cut is late where one of its key is out that is later, in another partition.

    And a later row is compared with an earlier one there.
    """
    assert _row(_CUT, 0).output_of(OUTPUTS - 1) != _row(_CUT, 0).output_of(OUTPUTS)
    staged(tmp_path / "old", [_row(10, 0), _row(20, 1)], 0, counts=_COUNTS)
    staged(tmp_path / "new", [_row(12, 2), _row(20, 3), _row(19, 4)], 30, counts=_COUNTS)
    released = Part(parquet_files(tmp_path / "old"), reasons=())
    for folder in ("judged", "fold"):
        (tmp_path / folder).mkdir()
    if is_folded:
        for number in range(OUTPUTS):
            FoldTask(tmp_path / "fold", (released,), has_grown=True)(range(number, number + 1))
        released = Part(parquet_files(tmp_path / "fold"), reasons=())
    behind = Part(parquet_files(tmp_path / "new"), reasons=(LATE,))
    looked_at = _COUNTS.within(BASE_MS, BASE_MS + 30)
    task = JudgeTask(tmp_path / "judged", behind, (released,), LateJudge(), counts=looked_at)
    for number in range(OUTPUTS):
        task(range(number, number + 1))
    judged = Part(parquet_files(tmp_path / "judged"), reasons=())
    pieces = RunRows((judged,), None, ("offset", "reason", "last_released_ms")).pieces()
    found = {one["offset"]: one for piece in pieces for one in piece.to_pylist()}
    assert {offset: one["reason"] for offset, one in found.items()} == {2: LATE, 3: None, 4: LATE}
    assert {one["last_released_ms"] for one in found.values()} == {BASE_MS + 20}


def test_log_knows_more_than_the_folder() -> None:
    """Of steps that older versions wrote the folder tells, which says how the job began."""
    topic = OutputTopic("out", 5)
    newest: Any = SimpleNamespace(partition_counts=None)
    assert known_counts("cp", None, 2, topic) == PartitionCounts((5,))
    assert known_counts("cp", newest, 2, topic) == PartitionCounts((2,))
    newest.partition_counts = PartitionCounts((2, 4), (7,))
    assert known_counts("cp", newest, 2, topic) == newest.partition_counts
    with pytest.raises(CheckpointError, match=r"had 4 partitions and has 3 now"):
        known_counts("cp", newest, 2, OutputTopic("out", 3))


class _Passing(BasicBolt):
    def process(self, tuple: Any, collector: Any, /) -> None:  # noqa: A002 - the field's word
        """Keep nothing."""


class _Counting(_Passing):
    def snapshot(self) -> int:
        return 1


@pytest.mark.promise("process-job-output-topic")
@pytest.mark.parametrize("bolt", [_Passing(), _Counting()])
def test_topology_that_keeps_state_is_refused_with_the_way_to_drain(bolt: BaseBolt) -> None:
    """Another goes on, with as many tasks as it had."""
    builder = TopologyBuilder("words")
    builder.set_spout("events")
    builder.set_bolt("count", bolt).shuffle_grouping("events")
    topology = builder.build()
    check_growth(topology, "out", had=2, has=2)
    if isinstance(bolt, _Counting):
        with pytest.raises(
            TopologyFileError,
            match=r"'out' had 2 partitions and has 3 now. Bolt 'count'.*--available-now --dr",
        ):
            check_growth(topology, "out", had=2, has=3)
    else:
        check_growth(topology, "out", had=2, has=3)

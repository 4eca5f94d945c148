"""Which batches the driver reads, and what it leaves to tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import LogRangeError, ReadTooLargeError, ReorderError, UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.small_batches import RowsRead, SmallBatches
from sequitur.pipelines.rows.run_writer import RunWriter, Summary
from tests.support.parquet_files import parquet_files
from tests.support.staged_rows import BOUNDS, SPEC, Row, as_batches

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.pipelines.ordering.context import Spans

_WHERE: Final = SourcePartition("in", 0)
_OTHER: Final = SourcePartition("in", 1)


@dataclass
class _Reader:
    """Has rows of some offsets, or an error."""

    error: Exception | None = None
    asked: list[tuple[Spans, int, int]] = field(default_factory=list)
    sent: dict[SourcePartition, int] = field(default_factory=dict)  # how far, where a leader hangs

    def read(self, spans: Spans, partitions: int, most_bytes: int) -> RowsRead:
        self.asked.append((spans, partitions, most_bytes))
        if self.error is not None:
            raise self.error
        sent = {where: (first, self.sent.get(where, end)) for where, (first, end) in spans.items()}
        rows = [
            Row(*where, offset, b"k", 7)
            for where, (first, stop) in sent.items()
            for offset in range(first, stop)
        ]
        return RowsRead(as_batches(rows, 3), sent, UnansweredError("in-1") if self.sent else None)


@dataclass
class _Case:
    folder: Path
    reader: _Reader = field(default_factory=_Reader)
    now_s: float = 1_000.0
    told: list[str] = field(default_factory=list)
    is_stopping: bool = False

    def batches(self, **given: Any) -> SmallBatches:
        settings = ReorderSettings.model_validate(
            {
                "input_topics": ["in"],
                "output_topic": "out",
                "checkpoint": "none",
                "event_time": "json:at",
                "small_batch_rows": 10,
                **given,
            }
        )
        return SmallBatches(
            self.reader,
            settings,
            self.told.append,
            lambda: self.now_s,
            is_stopping=lambda: self.is_stopping,
        )

    def read(self, batches: SmallBatches, spans: Spans) -> Summary | None:
        return batches.read_into(RunWriter(self.folder, SPEC, 0, BOUNDS), spans, 3)


@pytest.fixture
def case(tmp_path: Path) -> _Case:
    return _Case(tmp_path)


def test_a_small_batch_is_read_and_staged(case: _Case) -> None:
    batches = case.batches(small_batch_bytes=5_000)
    spans = {_WHERE: (4, 11), _OTHER: (0, 3)}
    found = case.read(batches, spans)
    assert found is not None
    assert (found.read, set(found.counted)) == (10, {_WHERE, _OTHER})
    assert [path.name for path in parquet_files(case.folder)] == [found.file]
    assert case.reader.asked == [(spans, 3, 5_000)]


@pytest.mark.parametrize("given", [{"small_batch_rows": 9}, {"small_batch_rows": 0}])
def test_a_batch_with_more_offsets_is_left_to_tasks_unread(
    case: _Case, given: dict[str, Any]
) -> None:
    """Offsets count, whether there are rows or not."""
    assert case.read(case.batches(**given), {_WHERE: (4, 11), _OTHER: (0, 3)}) is None
    assert case.reader.asked == []


def test_how_large_rows_were_says_what_is_small(case: _Case) -> None:
    """Whoever has read them; it is read again once they are smaller."""
    batches = case.batches(small_batch_bytes=5_000)
    batches.learn([Summary(counted={_WHERE: (10, 8_000)}), Summary(counted={_OTHER: (30, 16_000)})])
    assert case.read(batches, {_WHERE: (0, 8)}) is None
    assert case.read(batches, {_WHERE: (0, 7)}) is not None
    batches.learn([Summary()])
    assert case.read(batches, {_WHERE: (0, 8)}) is None
    batches.learn([Summary(counted={_WHERE: (10, 1_000)})])
    assert case.read(batches, {_WHERE: (0, 8)}) is not None
    assert len(case.reader.asked) == 2


@pytest.mark.promise("order-small-batches")
@pytest.mark.parametrize("error", [
    LogRangeError("in-0 begins at offset 5, and not at 0"),
    UnansweredError("nothing comes of in-0"),
    ValueError("of a codec that is new"),
], ids=lambda one: type(one).__name__)  # fmt: skip
def test_what_the_driver_cannot_read_tasks_read_for_a_minute(case: _Case, error: Exception) -> None:
    batches, spans = case.batches(), {_WHERE: (0, 5)}
    case.reader.error = error
    assert case.read(batches, spans) is None
    assert parquet_files(case.folder) == ()
    (line,) = case.told
    assert str(error) in line
    assert "Tasks read it" in line
    case.now_s += 59.0
    assert case.read(batches, spans) is None
    assert len(case.reader.asked) == 1
    case.now_s += 1.0
    case.reader.error = None
    assert case.read(batches, spans) is not None
    assert len(case.told) == 1


@pytest.mark.promise("order-broker-hangs")
def test_once_the_job_is_to_stop_tasks_need_not_wait_either(case: _Case) -> None:
    """The batch gives way to the stop, and the next start reads it; other errors are as before."""
    batches, spans = case.batches(), {_WHERE: (0, 5)}
    case.is_stopping = True
    case.reader.error = UnansweredError("nothing comes of in-0")
    with pytest.raises(StopRequestedError):
        case.read(batches, spans)
    case.reader.error = None
    assert case.read(batches, spans) is not None
    case.reader.error = LogRangeError("in-0 begins at offset 5, and not at 0")
    assert case.read(batches, spans) is None


def test_rows_that_turn_out_large_are_no_fault(case: _Case) -> None:
    batches = case.batches()
    case.reader.error = ReadTooLargeError(32 << 20)
    assert case.read(batches, {_WHERE: (0, 5)}) is None
    assert case.read(batches, {_WHERE: (0, 5)}) is None
    assert len(case.reader.asked) == 1
    assert case.told == []


def test_what_cannot_be_written_ends_the_step(case: _Case, tmp_path: Path) -> None:
    """Tasks could not write it, either."""
    case.folder = tmp_path / "gone"
    with pytest.raises(ReorderError, match="gone"):
        case.read(case.batches(), {_WHERE: (0, 5)})


@pytest.mark.promise("order-broker-hangs")
def test_what_was_read_before_its_plan_is_staged_without_another_read(case: _Case) -> None:
    """Of a leader that hangs nothing is staged, and others do not wait for it again."""
    batches, spans = case.batches(), {_WHERE: (4, 7), _OTHER: (0, 3)}
    case.reader.sent = {_OTHER: 1}
    read = batches.read_ahead(spans, 3) or {}
    assert read == {_WHERE: (4, 7), _OTHER: (0, 1)}
    found = case.read(batches, read)
    assert found is not None
    assert (found.read, len(case.reader.asked)) == (4, 1)
    assert "goes on with the rows of others" in case.told[0]
    case.reader.sent.clear()
    assert batches.read_ahead({_OTHER: (1, 3)}, 3) == {_OTHER: (1, 3)}


def test_rows_of_a_batch_that_is_planned_otherwise_are_read_again(case: _Case) -> None:
    """As by an owner before us, who woke up and planned it first."""
    batches = case.batches()
    assert batches.read_ahead({_WHERE: (0, 7)}, 3) == {_WHERE: (0, 7)}
    for _ in range(2):
        found = case.read(batches, {_WHERE: (0, 5)})
        assert found is not None
        assert found.read == 5
    assert len(case.reader.asked) == 3


def test_what_the_driver_cannot_read_is_planned_unread(case: _Case) -> None:
    batches = case.batches()
    assert batches.read_ahead({_WHERE: (0, 11)}, 3) is None
    case.reader.error = LogRangeError("in-0 begins at offset 5, and not at 0")
    assert batches.read_ahead({_WHERE: (0, 5)}, 3) is None
    case.reader.error = None
    case.reader.sent = {_WHERE: 2}
    assert case.read(batches, {_WHERE: (0, 5)}) is None
    case.is_stopping = True
    case.now_s += 60.0
    with pytest.raises(StopRequestedError):
        batches.read_ahead({_WHERE: (0, 5)}, 3)

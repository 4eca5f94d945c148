"""The exactly-once sink through deaths, doubled processes, and checkpoints of other times."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.errors import (
    CheckpointError,
    FencedError,
    OutputMismatchError,
    OwnershipError,
    WrongBatchError,
)
from sequitur.pipelines.spark_sink.sink_folder import SinkFolder
from sequitur.pipelines.spark_sink.sink_steps import SinkSteps
from sequitur.pipelines.spark_sink.staged_rows import SendStaged
from tests.spark.spark_sink import PARTITIONS, CrashError, Sink, as_query, dying_at, numbered

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic

pytestmark = pytest.mark.spark


def _die(sink: Sink, monkeypatch: pytest.MonkeyPatch, document: str, *, is_written: bool) -> None:
    dies = dying_at(SinkFolder.write_document, document, is_written=is_written)
    with monkeypatch.context() as patched:
        patched.setattr(SinkFolder, "write_document", dies)
        with pytest.raises(CrashError):
            sink.batch(1, range(200, 400))


@pytest.mark.test_all
@pytest.mark.promise("sink-death-documents-stream")
@pytest.mark.parametrize(
    ("document", "is_written", "is_same_process"),
    [
        ("staged", True, True),
        ("staged", False, False),
        ("plans", True, False),
        ("plans", False, True),
        ("done", True, True),
        ("done", True, False),
        ("done", False, False),
    ],
)
def test_death_at_any_document_loses_and_doubles_nothing(
    sink: Sink,
    monkeypatch: pytest.MonkeyPatch,
    document: str,
    *,
    is_written: bool,
    is_same_process: bool,
) -> None:
    """Before it is there or just behind, with the batch repeated by this process or another."""
    sink.batch(0, range(200))
    _die(sink, monkeypatch, document, is_written=is_written)
    if not is_same_process:
        sink.new()
    sink.batch(1, range(200, 400))
    sink.batch(2, range(400, 500))
    sink.check(500)
    assert [*(sink.checkpoint / "rows").iterdir()] == []


@pytest.mark.promise("sink-dataframe-written-name", "sink-death-documents-stream")
@pytest.mark.parametrize("is_written", [True, pytest.param(False, marks=pytest.mark.test_all)])
@pytest.mark.parametrize(
    "document",
    [
        "plans",
        *(pytest.param(one, marks=pytest.mark.test_all) for one in ("staged", "names", "done")),
    ],
)
def test_death_at_any_document_of_a_name_loses_and_doubles_nothing(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, document: str, *, is_written: bool
) -> None:
    """The call after it says that it wrote, or that there was nothing to write."""
    assert sink.write("monday", range(100)).rows == 100
    dies = dying_at(SinkFolder.write_document, document, is_written=is_written)
    with monkeypatch.context() as patched:
        patched.setattr(SinkFolder, "write_document", dies)
        with pytest.raises(CrashError):
            sink.write("tuesday", range(100, 300))
    sink.new()
    is_over = document == "done" and is_written
    told = sink.write("tuesday", range(100, 300))
    assert (told.is_repeat, told.rows) == ((True, None) if is_over else (False, 200))
    assert sink.write("tuesday", range(100, 300)).is_repeat
    assert sink.write("monday", range(100)).is_repeat
    assert not sink.write("wednesday", range(300, 310)).is_repeat
    sink.check(310)


@pytest.mark.test_all
@pytest.mark.promise("sink-death-documents-stream")
def test_what_a_name_has_begun_is_finished_before_the_next(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody writes under that name again."""
    dies = dying_at(SinkFolder.write_document, "plans", is_written=True)
    with monkeypatch.context() as patched:
        patched.setattr(SinkFolder, "write_document", dies)
        with pytest.raises(CrashError):
            sink.write("monday", range(100))
    sink.new()
    assert sink.write("tuesday", range(100, 150)).rows == 50
    sink.check(150)


@pytest.mark.promise("sink-spark-computes-batch")
def test_batch_that_spark_computes_differently_sends_what_was_staged(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other rows of the same batch (SPARK-28650), when part of it is out, count no more."""
    sink.batch(0, range(100))
    real, sent = SendStaged.__call__, []

    def dying(one: SendStaged) -> dict[int, int]:
        sent.append(real(one))
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(SendStaged, "__call__", dying)
        with pytest.raises(Exception, match="CrashError"):
            sink.batch(1, range(100, 300))
    assert sent
    sink.new()
    other = numbered(sink.spark, range(5000, 6000)).withColumn("value", F.lit("other"))
    sink.batch(1, other)
    sink.batch(2, range(300, 350))
    sink.check(350)


@pytest.mark.promise("sink-user-code-passes")
def test_batch_whose_failure_was_passed_over_is_finished_by_the_next(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function around the sink that catches its errors loses nothing of what was staged."""
    sink.batch(0, range(200))
    _die(sink, monkeypatch, "plans", is_written=True)
    sink.batch(2, range(400, 500))
    sink.check(500)


@pytest.mark.promise("sink-spark-checkpoint-new")
def test_another_query_is_refused_by_its_id(sink: Sink) -> None:
    """With Spark's checkpoint deleted, batch 0 would look written."""
    sink.batch(0, range(10))
    sink.new()
    sink.query = "query-2"
    with pytest.raises(WrongBatchError, match="belongs to the query with the id query-1"):
        sink.batch(0, range(10, 20))
    sink.check(10)


@pytest.mark.test_all
@pytest.mark.promise("sink-spark-checkpoint-new")
def test_batch_that_is_neither_the_last_nor_the_next_is_refused(sink: Sink) -> None:
    """Nor is one that is not the first given to an empty checkpoint, but where that is said."""
    with pytest.raises(WrongBatchError, match=r"is empty, .* batch 3: .* use first_batch=3"):
        sink.batch(3, range(10))
    sink.new(first_batch=3)
    sink.batch(3, range(10))
    sink.batch(3, range(10))
    for wrong in (2, 5):
        with pytest.raises(WrongBatchError, match=f"got to batch 3, and this is batch {wrong},"):
            sink.batch(wrong, range(10, 20))
    sink.batch(4, range(10, 20))
    sink.check(20)


@pytest.mark.test_all
def test_a_call_outside_of_a_query_is_refused(sink: Sink) -> None:
    with pytest.raises(WrongBatchError, match="not a batch of a streaming query"):
        sink.new()(numbered(sink.spark, range(3)), 0)
    sink.batch(0, range(10))
    with pytest.raises(WrongBatchError, match="has a stream's batches: "):
        sink.write("monday", range(10))
    with pytest.raises(ValueError, match="name = ''"):
        sink.write("", range(10))


def _stream(sink: Sink, folder: Path) -> None:
    rows = sink.spark.readStream.schema("n long, key string, value string")
    query = (
        rows.parquet(str(folder / "input"))
        .writeStream.foreachBatch(sink.new())
        .option("checkpointLocation", str(folder / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _feed(sink: Sink, folder: Path, numbers: range) -> None:
    rows = numbered(sink.spark, numbers)
    rows.coalesce(1).write.mode("append").parquet(str(folder / "input"))


@pytest.mark.test_all
@pytest.mark.promise("sink-spark-checkpoint-new")
def test_new_checkpoint_of_sparks_is_refused(sink: Sink, tmp_path: Path) -> None:
    """By a real query, whose id Spark has lost."""
    _feed(sink, tmp_path, range(50))
    _stream(sink, tmp_path)
    shutil.rmtree(tmp_path / "spark")
    with pytest.raises(StreamingQueryException, match="belongs to the query with the id"):
        _stream(sink, tmp_path)
    sink.check(50)


@pytest.mark.test_all
@pytest.mark.promise("sink-spark-checkpoint-new")
def test_older_copy_of_sparks_checkpoint_is_refused(sink: Sink, tmp_path: Path) -> None:
    """Also of the batch before alone: what the batch would read now, is more than was staged."""
    _feed(sink, tmp_path, range(50))
    _stream(sink, tmp_path)
    shutil.copytree(tmp_path / "spark", tmp_path / "copy")
    _feed(sink, tmp_path, range(50, 80))
    _stream(sink, tmp_path)
    shutil.rmtree(tmp_path / "spark")
    (tmp_path / "copy").rename(tmp_path / "spark")
    _feed(sink, tmp_path, range(80, 90))
    with pytest.raises(StreamingQueryException, match="was staged from other offsets"):
        _stream(sink, tmp_path)
    sink.check(80)


@pytest.mark.promise("sink-second-process-thought")
def test_second_process_is_refused(sink: Sink) -> None:
    """As long as the first has the checkpoint; then it goes on there."""
    sink.batch(0, range(10))
    second = sink.beside()
    with pytest.raises(OwnershipError, match="has this checkpoint"):
        second.write(numbered(sink.spark, range(10)), name="monday")
    sink.close()
    sink.batch(1, range(10, 20))
    sink.check(20)


@pytest.mark.test_all
@pytest.mark.promise("sink-second-process-thought")
def test_process_that_was_thought_dead_does_nothing_more(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer one has taken over, while the older was about to mark a batch as done."""
    sink.batch(0, range(100))
    older, sink.life = sink.life, None
    assert older is not None
    real = SinkSteps._sent

    def overtaken(steps: Any, *given: Any) -> Any:
        found = real(steps, *given)
        with monkeypatch.context() as patched:
            patched.setattr(SinkSteps, "_sent", real)
            patched.setattr(
                "sequitur.pipelines.store.ownership.refuse_if_owned", lambda *_, **__: None
            )
            sink.batch(1, range(100, 200))
            sink.batch(2, range(200, 300))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(SinkSteps, "_sent", overtaken)
        with (
            as_query(sink.spark, sink.query),
            pytest.raises(OwnershipError, match="has taken this checkpoint over"),
        ):
            older(numbered(sink.spark, range(100, 200)), 1)
    with (
        as_query(sink.spark, sink.query),
        pytest.raises(OwnershipError, match="has taken this checkpoint over"),
    ):
        older(numbered(sink.spark, range(200, 300)), 2)
    sink.batch(3, range(300, 350))
    sink.check(350)
    older.close()


@pytest.mark.promise("sink-sink-checkpoint-older")
@pytest.mark.parametrize(
    "batches", [1, *(pytest.param(n, marks=pytest.mark.test_all) for n in (0, 2))]
)
def test_older_copy_of_the_sinks_checkpoint_is_refused(
    sink: Sink, tmp_path: Path, batches: int
) -> None:
    """Though Spark's is of the same time: the topic holds more."""
    sink.write("first", range(0))
    for number in range(batches):
        sink.write(f"name {number}", range(100 * number, 100 * number + 100))
    sink.close()
    shutil.copytree(sink.checkpoint, tmp_path / "copy")
    sink.write("more", range(100 * batches, 100 * batches + 100))
    sink.close()
    shutil.rmtree(sink.checkpoint)
    (tmp_path / "copy").rename(sink.checkpoint)
    with pytest.raises(OutputMismatchError, match="the checkpoint does not know"):
        sink.write("more", range(100 * batches, 100 * batches + 100))
    sink.check(100 * batches + 100)


@pytest.mark.test_all
@pytest.mark.promise("sink-sink-checkpoint-older")
def test_older_copy_with_a_batch_begun_is_refused(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has begun is there; what was written behind it, to other partitions, is seen."""
    one = numbered(sink.spark, range(100)).withColumn("partition", F.lit(1))
    two = numbered(sink.spark, range(100)).withColumn("partition", F.lit(2))
    dies = dying_at(SinkFolder.write_document, "plans", is_written=True)
    with monkeypatch.context() as patched:
        patched.setattr(SinkFolder, "write_document", dies)
        with pytest.raises(CrashError):
            sink.write("one", one)
    sink.close()
    shutil.copytree(sink.checkpoint, tmp_path / "copy")
    sink.write("one", one)
    sink.write("two", two)
    sink.close()
    shutil.rmtree(sink.checkpoint)
    (tmp_path / "copy").rename(sink.checkpoint)
    with pytest.raises((OutputMismatchError, FencedError)):
        sink.write("two", two)
    assert len(sink.records()) == 200


@pytest.mark.promise("sink-checkpoint-damaged-lacks")
def test_damaged_and_foreign_checkpoints_are_refused_by_name(
    sink: Sink, tmp_path: Path, make_topic: MakeTopic
) -> None:
    sink.write("one", range(10))
    sink.close()
    own, sink.topic = sink.topic, make_topic(partitions=PARTITIONS)
    with pytest.raises(CheckpointError, match=f"belongs to a sink of topic '{own}'"):
        sink.write("two", range(10, 20))
    sink.close()
    sink.topic = own
    with pytest.raises(CheckpointError, match="belongs to a sink with app = "):
        sink.new(app="other").write(numbered(sink.spark, range(3)), name="two")
    sink.close()
    done = sink.checkpoint / "done" / f"{0:012d}"
    text = done.read_text()
    done.write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match=r"done/0+ cannot be read: .* format 2, this version"):
        sink.write("two", range(10, 20))
    sink.close()
    done.unlink()
    (sink.checkpoint / "staged" / f"{1:012d}").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        sink.write("two", range(10, 20))
    sink.close()
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").write_text("")
    with pytest.raises(CheckpointError, match="holds something else"):
        sink.new(checkpoint=str(tmp_path / "else")).write(
            numbered(sink.spark, range(3)), name="two"
        )


@pytest.mark.test_all
@pytest.mark.promise("sink-checkpoint-damaged-lacks")
def test_rows_that_are_gone_are_named(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was staged needs its files until it is done."""
    sink.batch(0, range(200))
    _die(sink, monkeypatch, "staged", is_written=True)
    sink.close()
    (folder,) = (sink.checkpoint / "rows").iterdir()
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="rows of batch 1 that are not all sent, is gone"):
        sink.batch(1, range(200, 400))


@pytest.mark.test_all
def test_what_an_attempt_at_staging_left_goes(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    _die_first = dying_at(SinkFolder.write_document, "staged", is_written=False)
    with monkeypatch.context() as patched:
        patched.setattr(SinkFolder, "write_document", _die_first)
        with pytest.raises(CrashError):
            sink.batch(0, range(10))
    assert len([*(sink.checkpoint / "rows").iterdir()]) == 1
    sink.new()
    sink.batch(0, range(10))
    assert [*(sink.checkpoint / "rows").iterdir()] == []
    sink.check(10)

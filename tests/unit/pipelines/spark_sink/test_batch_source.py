"""Whose turn it is: a batch is the newest one again, or the next, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sequitur.base.stored import dump, load
from sequitur.errors import StateFormatError, WrongBatchError
from sequitur.pipelines.spark_sink.batch_documents import BatchDone, StagedBatch, StagedFile
from sequitur.pipelines.spark_sink.batch_source import (
    BatchSource,
    NamedBatch,
    StreamBatch,
    is_repeated,
)

_ROOT = "file:/sink"


def _asked(batch: BatchSource, newest: BatchSource | None, first_batch: int = 0) -> bool:
    return is_repeated(_ROOT, batch, newest, first_batch)


def test_a_stream_goes_on_by_one() -> None:
    """The newest batch may come again, and the one behind it is new."""
    assert not _asked(StreamBatch("q", 0), None)
    assert _asked(StreamBatch("q", 7, "plan"), StreamBatch("q", 7, "plan"))
    assert not _asked(StreamBatch("q", 8, "other"), StreamBatch("q", 7, "plan"))
    assert not _asked(StreamBatch("q", 5), None, first_batch=5)


@pytest.mark.parametrize("plans", [(None, "plan"), ("plan", None), (None, None)])
def test_a_plan_that_is_not_known_refuses_nothing(plans: tuple[str | None, str | None]) -> None:
    given, staged = plans
    assert _asked(StreamBatch("q", 7, given), StreamBatch("q", 7, staged))


@pytest.mark.parametrize(
    ("batch", "newest", "told"),
    [
        (StreamBatch("q", 1), None, "is empty, and the stream has got to batch 1"),
        (StreamBatch("q", 0), StreamBatch("p", 0), "belongs to the query with the id p"),
        (StreamBatch("q", 8, "b"), StreamBatch("q", 8, "a"), "staged from other offsets"),
        (StreamBatch("q", 7), StreamBatch("q", 8), "got to batch 8, and this is batch 7"),
        (StreamBatch("q", 10), StreamBatch("q", 8), "got to batch 8, and this is batch 10"),
        (StreamBatch("q", 0), NamedBatch("a"), "has DataFrames with names"),
        (NamedBatch("a"), StreamBatch("q", 0), "has a stream's batches"),
    ],
)
def test_any_other_is_refused_by_name(
    batch: BatchSource, newest: BatchSource | None, told: str
) -> None:
    """It would look written, or what is between would be passed over."""
    with pytest.raises(WrongBatchError, match=told):
        _asked(batch, newest)


def test_names_come_in_any_order() -> None:
    """The newest one is known; of older ones the checkpoint has a document each."""
    assert not _asked(NamedBatch("a"), None)
    assert not _asked(NamedBatch("a"), NamedBatch("b"))
    assert _asked(NamedBatch("a"), NamedBatch("a"))


@pytest.mark.parametrize("source", [StreamBatch("q", 3, "p"), NamedBatch("n")])
def test_documents_are_read_back(source: BatchSource) -> None:
    files = (
        StagedFile("a", 10, (((0, 2), (1, 1)), ((3, 7),))),
        StagedFile("b", 20, (((2, 5),), ((2, 4),))),
    )
    staged = StagedBatch(4, source, 8, "folder", files)
    assert load(StagedBatch, json.loads(json.dumps(dump(staged)))) == staged
    assert dict(staged.rows) == {0: 2, 1: 1, 2: 9, 3: 7}
    assert staged.size_bytes == 30
    done = BatchDone(4, 19, {"cluster": "c"})
    assert load(BatchDone, json.loads(json.dumps(dump(done)))) == done


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"format": 2}, "of format 2, this version reads 1"),
        ({"source": {"query": "q", "batch": 3}}, "has no 'plan'"),
        ({"source": {"name": None}}, "source"),
        ({"files": {"a": 7}}, "int"),
        ({"files": {"a": [7, [[[1]]]]}}, "groups"),
    ],
)
def test_a_damaged_document_is_refused_with_what_is_wrong(damage: dict[str, Any], why: str) -> None:
    staged = dump(StagedBatch(4, StreamBatch("q", 3), 8, "folder", ()))
    with pytest.raises(StateFormatError, match=f"^staged batch.* .*{why}"):
        load(StagedBatch, {**staged, **damage})

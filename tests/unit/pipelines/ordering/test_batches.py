"""What `foreachBatch` gets: it says how large the next batch may be, once it knows the query."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

from sequitur.pipelines.ordering import spark_query
from sequitur.pipelines.ordering.batch_size import BatchSize
from sequitur.pipelines.ordering.spark_query import Batches
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    import pytest


def test_first_batch_waits_for_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may run it before it has said that the query is started."""
    limits: list[tuple[object, int]] = []
    monkeypatch.setattr(spark_query, "limit_batches", lambda _, of, rows: limits.append((of, rows)))
    staged = SimpleNamespace(counts=SimpleNamespace(read=10), run=SimpleNamespace(size_bytes=10))
    engine: Any = SimpleNamespace(run_batch=lambda _batch_id: staged)
    batches = Batches(engine, BatchSize(1_000_000, 0.0))
    assert batches.first_rows == 200_000
    first = threading.Thread(target=batches, args=(Mock(), 0))
    first.start()
    first.join(0.1)
    assert (first.is_alive(), limits) == (True, [])
    started: Any = "the query"
    batches.are_of(started)
    first.join(PATIENCE_S)
    assert limits == [("the query", 800_000)]


def test_a_query_is_told_of_a_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time takes some dozen calls into Java; in the end all batches may have as many rows."""
    limits: list[int] = []
    monkeypatch.setattr(spark_query, "limit_batches", lambda *told: limits.append(told[2]))
    staged = SimpleNamespace(counts=SimpleNamespace(read=10), run=SimpleNamespace(size_bytes=10))
    engine: Any = SimpleNamespace(run_batch=lambda _batch_id: staged)
    batches = Batches(engine, BatchSize(1_000_000, 0.0))
    batches.are_of(Mock())
    for number in range(5):
        batches(Mock(), number)
    assert limits == [800_000, 1_000_000]
    small = Batches(engine, BatchSize(50, 0.0))
    small.are_of(Mock())
    small(Mock(), 0)
    assert limits == [800_000, 1_000_000]


def test_batch_without_a_limit_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(spark_query, "limit_batches")
    staged = SimpleNamespace(counts=SimpleNamespace(read=10), run=SimpleNamespace(size_bytes=10))
    for size, answer in ((None, staged), (BatchSize(50, 0.0), None)):
        engine: Any = SimpleNamespace(run_batch=lambda *_, answer=answer: answer)
        batches = Batches(engine, size)
        batches(Mock(), 0)
        assert batches.error is None

"""What follows on the end of a query's life: a restart, a step over lost rows, or the job's end."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.retry import Outages
from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import (
    CheckpointError,
    DataLossError,
    LogRangeError,
    SinkUnansweredError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.restarts import Begin, Restarts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.pipelines.ordering.batch_size import BatchSize

_WHERE = SourcePartition("in", 0)


class _Query:
    """Its lives end by one error after the other, and the last one by itself."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.begun: list[tuple[Begin, BatchSize | None]] = []

    def live(self, begin: Begin, size: BatchSize | None) -> Exception | None:
        self.begun.append((begin, size))
        return self.errors.pop(0) if self.errors else None

    def passes(self, error: Exception) -> bool:
        return isinstance(error, TimeoutError)

    def may_be_loss(self, error: Exception) -> bool:
        return isinstance(error, LookupError)


class _Input:
    """An input that has lost rows until these are passed over."""

    def __init__(self, lost: dict[SourcePartition, tuple[int, int]], *, has_log: bool) -> None:
        self.gone = lost
        self.has_log = has_log
        self.is_reset = False

    def lost(self, _topics: object) -> dict[SourcePartition, tuple[int, int]]:
        return self.gone

    def pass_over_lost(self, _topics: object) -> dict[SourcePartition, tuple[int, int]]:
        self.is_reset = True
        found, self.gone = self.gone, {}
        return found

    def begins(self, _topics: object) -> dict[SourcePartition, int] | None:
        return {_WHERE: 7} if self.is_reset else None

    def unread(self, _topics: object) -> dict[SourcePartition, tuple[int, int]]:
        return {}

    def forget_unfinished(self) -> None: ...


class _Case:
    def __init__(
        self,
        query: _Query,
        *,
        lost: dict[SourcePartition, tuple[int, int]] | None = None,
        has_log: bool = True,
        restarts: int = 2,
        **settings: Any,
    ) -> None:
        self.query = query
        self.stop = threading.Event()
        self.told: list[str] = []
        self.opened = 0
        self.owner_error: Exception | None = None
        outages = Outages(0.0, restarts, wait=lambda _: self.stop.is_set(), tell=self.told.append)
        given = {"input_topics": ["in"], "output_topic": "out", "event_time": "json:at"}
        job: Any = SimpleNamespace(
            kafka=None,
            settings=ReorderSettings.model_validate({**given, "checkpoint": "x", **settings}),
            topics=SimpleNamespace(require=lambda _: 1),
            checkpoint=SimpleNamespace(check_owner=self._check_owner),
            outages=outages,
        )
        self.input = _Input(lost or {}, has_log=has_log)
        engine: Any = SimpleNamespace(input=self.input, reopen=self._reopen)
        self.restarts = Restarts(job, engine, query, self.stop)

    def _reopen(self) -> None:
        self.opened += 1

    def _check_owner(self) -> None:
        if self.owner_error is not None:
            raise self.owner_error


@pytest.mark.promise("order-kafka-away-minutes")
@pytest.mark.parametrize(
    "error", [UnansweredError("x"), SinkUnansweredError("x"), TimeoutError("x")]
)
def test_what_passes_by_itself_restarts_the_query(error: Exception) -> None:
    """Our own errors, and those that are the query's own; each time the engine is opened again."""
    case = _Case(_Query(error, error))
    case.restarts.run()
    assert (len(case.query.begun), case.opened) == (3, 2)
    begin, size = case.query.begun[0]
    assert begin == Begin({"in": 1}, None)
    assert size is not None
    assert size.rows == 200_000


@pytest.mark.promise("order-kafka-away-minutes")
def test_restarts_come_to_an_end() -> None:
    case = _Case(_Query(*[UnansweredError("no answer")] * 3))
    with pytest.raises(UnansweredError, match="no answer"):
        case.restarts.run()
    assert len(case.query.begun) == 3


@pytest.mark.parametrize("error", [ValueError("x"), TopicError("x"), CheckpointError("x")])
def test_what_stays_wrong_ends_the_job(error: Exception) -> None:
    case = _Case(_Query(error))
    with pytest.raises(type(error)):
        case.restarts.run()
    assert len(case.query.begun) == 1


def test_after_a_stop_there_is_no_other_life() -> None:
    case = _Case(_Query(StopRequestedError()))
    case.restarts.run()
    case = _Case(_Query(UnansweredError("x")))
    case.stop.set()
    case.restarts.run()
    assert len(case.query.begun) == 1


@pytest.mark.promise("order-older-driver-goes")
def test_who_has_lost_the_checkpoint_is_told_that_whatever_else_went_wrong() -> None:
    case = _Case(_Query(UnansweredError("x")))
    case.owner_error = CheckpointError("another process has it")
    with pytest.raises(CheckpointError, match="another process"):
        case.restarts.run()


@pytest.mark.promise("order-rows-deleted-read")
@pytest.mark.parametrize("error", [LogRangeError("x"), TopicError("x"), LookupError("x")])
def test_lost_rows_are_counted_or_end_the_job(error: Exception) -> None:
    lost = {_WHERE: (3, 7)}
    case = _Case(_Query(error), lost=lost)
    with pytest.raises(DataLossError, match=r"offsets 3 to 6: gone .*on_data_loss = .continue"):
        case.restarts.run()
    case = _Case(_Query(error), lost=lost, on_data_loss="continue")
    case.restarts.run()
    assert [begin.places for begin, _ in case.query.begun] == [None, {_WHERE: 7}]
    assert _lines(case.told) == 1
    case = _Case(_Query(error), lost=lost, has_log=False)
    with pytest.raises(DataLossError, match="--reset-input"):
        case.restarts.run()


def _lines(told: Sequence[str]) -> int:
    return sum("counted as 4 rows missing" in line for line in told)

"""The job on lists puts out what the reference does: the job, but for brokers and Spark.

Random streams, cut into batches anywhere; lives that end between batches, with the last batch given
again, and within a step. A few of them run on Spark, too, beside the tester, and are held against
it document by document: tests/spark/test_reorder_reference.py.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer import REASON_HEADER
from sequitur.errors import StepFunctionError
from sequitur.kafka.partition import KeyPartitioner
from sequitur.testing import ReorderTester
from tests.support.job_on_lists import PLACE, job_on_lists, rows_of
from tests.support.reorder_histories import PARTITIONS, histories
from tests.support.reorder_reference import Record, Reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.testing import ReorderedRecord
    from tests.support.reorder_histories import History

_PLACES = [("in", number) for number in PARTITIONS]


class _Dying:
    """Fails once where it is told to: the rows of the step are out then, and it is not done."""

    def __init__(self) -> None:
        self.is_due = False
        self.died = 0

    def __call__(self, _step: object) -> None:
        if self.is_due:
            self.is_due = False
            self.died += 1
            raise RuntimeError("the process dies here")


@given(histories(max_steps=5, max_sent=12), st.booleans(), st.integers(1, 3))
def test_the_job_on_lists_puts_out_what_the_reference_does(
    history: History, rescue: bool, output_partitions: int
) -> None:
    reference = Reference(
        delay_ms=history.delay_ms,
        idle_timeout_ms=history.idle_timeout_ms,
        max_future_skew_ms=500,
        rescue=rescue,
        is_bounded=True,
    )
    settings = job_on_lists(history, rescue=rescue, output_partitions=output_partitions)
    dying, now_ms = _Dying(), history.start_ms
    with ReorderTester(
        settings, partitions=len(PARTITIONS), on_step=dying, now_ms=now_ms, available_now=True
    ) as tester:
        sent: dict[tuple[str, int], int] = dict.fromkeys(_PLACES, 0)
        for number, step in enumerate(history.steps):
            now_ms += step.passed_ms
            tester.now_ms = now_ms
            rows, records = rows_of(step, "in", sent)
            dying.is_due = step.dies and number % 2 == 1
            with contextlib.suppress(StepFunctionError):
                tester.run(rows)
            dying.is_due = False
            if step.dies:
                tester.restart(repeats=number % 3 == 0)
            tester.run()
            reference.step(records, _PLACES, now_ms=now_ms)
            assert _places(tester.released) == _expected(reference.released, output_partitions)
        tester.drain()
        reference.drain()
        assert _places(tester.released) == _expected(reference.released, output_partitions)
        assert sorted(map(_place, tester.late)) == sorted(map(_place_of, reference.late))
        assert sorted((_place(one), _header(one, REASON_HEADER)) for one in tester.quarantined) == (
            sorted((_place_of(record), reason) for record, reason in reference.quarantined)
        )
        assert tester.totals.held == 0


def _places(records: Iterable[ReorderedRecord]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(_place(record))
    return found


def _expected(records: Iterable[Record], partitions: int) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for record in records:
        where = record.partition % partitions
        if record.key is not None:
            where = KeyPartitioner(partitions).each([record.key.encode()])[0]
        found.setdefault(where, []).append(_place_of(record))
    return found


def _header(record: ReorderedRecord, name: str) -> str:
    return (record.header(name) or b"").decode()


def _place(record: ReorderedRecord) -> str:
    return _header(record, PLACE)


def _place_of(record: Record) -> str:
    return f"{record.partition}:{record.offset}"

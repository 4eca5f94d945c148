"""A job that changes its runner between any two batches decides each step as one that does not.

On lists: the local runner, and the tester in the place of Spark, whose job is held against the
tester in tests/spark/test_reorder_reference.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.testing import ReorderTester
from tests.support.examples import examples
from tests.support.job_on_lists import documents_in, job_on_lists, rows_of
from tests.support.local_runs import LocalTester
from tests.support.reorder_histories import PARTITIONS, History, histories

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.testing import ReorderedRecord

_PLACES: Final = [("in", number) for number in PARTITIONS]


@pytest.mark.promise("order-runner-changes-between", "order-local-runner-needs")
@settings(max_examples=examples(0.1))
@given(
    history=histories(max_steps=5, max_sent=12),
    runners=st.lists(st.booleans(), min_size=5, max_size=5),
    small_rows=st.sampled_from([0, 4, 50_000]),
    repeats=st.booleans(),
)
def test_either_runner_decides_alike(
    *, history: History, runners: list[bool], small_rows: int, repeats: bool
) -> None:
    """With lives that end between batches, and with the last batch given again."""
    job = job_on_lists(history, small_batch_rows=small_rows)
    how: dict[str, Any] = {
        "partitions": len(PARTITIONS), "now_ms": history.start_ms, "available_now": True
    }  # fmt: skip
    with ReorderTester(job, **how) as alone, LocalTester(job, **how) as mixed:
        sent: dict[tuple[str, int], int] = dict.fromkeys(_PLACES, 0)
        for step, runs_here in zip(history.steps, runners, strict=False):
            rows = rows_of(step, "in", sent)[0]
            mixed.runs_here = runs_here
            for tester in (alone, mixed):
                tester.now_ms += step.passed_ms
                if step.dies:
                    tester.restart(repeats=repeats)
                    tester.run()  # the batch that comes again, by itself
                tester.run(rows)
            assert _planned(alone) == _planned(mixed)
        for tester in (alone, mixed):
            tester.drain()
        for topic in ("released", "late", "quarantined"):
            assert _rows(getattr(alone, topic)) == _rows(getattr(mixed, topic))
        for folder in ("frontier", "done"):
            assert documents_in(alone.folder / folder) == documents_in(mixed.folder / folder)


def _rows(records: Iterable[ReorderedRecord]) -> list[tuple[Any, ...]]:
    return [(one.partition, one.offset, one.key, one.value, one.headers) for one in records]


def _planned(tester: ReorderTester) -> dict[str, Any]:
    """Return where each batch ends; of a folder in which nothing is planned yet, nothing."""
    folder = tester.folder / "spark" / "offsets"
    names = sorted(folder.iterdir()) if folder.exists() else []
    return {one.name: json.loads(one.read_text().splitlines()[-1]) for one in names}

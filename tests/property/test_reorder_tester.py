"""The job on lists puts out what the reference does: the job, but for brokers and Spark.

Random streams, cut into batches anywhere; lives that end between batches, with the last batch given
again, and within a step. A few of them run on Spark, too, beside the tester, and are held against
it document by document: tests/spark/test_reorder_reference.py.
"""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.consumer.reorder.key_state import FoldLimits
from sequitur.consumer.reorder.reasons import REASON_HEADER
from sequitur.errors import StepFunctionError
from sequitur.kafka.partition import KeyPartitioner
from sequitur.testing import ReorderTester
from tests.support.examples import examples
from tests.support.job_on_lists import PLACE, job_on_lists, rows_of
from tests.support.list_job import list_job
from tests.support.reorder_histories import PARTITIONS, History, histories
from tests.support.reorder_reference import Record, Reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.testing import ReorderedRecord

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


_NOW_MS: Final = 1_700_000_000_000
_IN_DRIVER: Final = 50_000
_BY_TASKS: Final = 0
_SMALL_ROWS = st.sampled_from([_BY_TASKS, 4, _IN_DRIVER])
"""Up to how many rows the driver stages a batch."""


@pytest.mark.promise("order-random-disorder-silence")
@pytest.mark.promise("order-event-arrives-later", "order-key-silent-longer")
@given(
    history=histories(max_steps=5, max_sent=12),
    rescue=st.booleans(),
    key_ttl_ms=st.integers(1, 60),
    folded_runs=st.integers(1, 4),
    output_partitions=st.integers(1, 3),
    small_rows=_SMALL_ROWS,
)
def test_the_job_on_lists_puts_out_what_the_reference_does(
    *,
    history: History,
    rescue: bool,
    key_ttl_ms: int,
    folded_runs: int,
    output_partitions: int,
    small_rows: int,
) -> None:
    """Folds, merges and forgetting of keys change no decision; no key goes back in time."""
    reference = Reference(
        delay_ms=history.delay_ms,
        idle_timeout_ms=history.idle_timeout_ms,
        max_future_skew_ms=500,
        rescue=rescue,
        key_ttl_ms=key_ttl_ms,
        is_bounded=True,
    )
    reorder = job_on_lists(
        history,
        rescue=rescue,
        key_ttl=timedelta(milliseconds=key_ttl_ms),
        output_partitions=output_partitions,
        small_batch_rows=small_rows,
    )
    dying, now_ms = _Dying(), history.start_ms
    with contextlib.ExitStack() as opened:
        job = list_job(reorder, opened, partitions=len(PARTITIONS))
        job.fold_limits, job.on_step, tester = FoldLimits(runs=folded_runs), dying, job.tester
        tester.now_ms = now_ms
        tester.begin(job)
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
        for key in ("a", "b", "c"):
            times = [json.loads(one.value)["at"] for one in reference.released if one.key == key]
            assert sorted(times) == times or not rescue


@settings(max_examples=examples(0.3))
@given(histories(max_steps=4, max_sent=12), st.integers(1, 3))
def test_batches_of_the_driver_and_of_tasks_are_logged_alike(
    history: History, output_partitions: int
) -> None:
    """But for the files that are named, and their sizes."""
    by_driver, by_tasks = (
        _staged_of(history, output_partitions=output_partitions, small_batch_rows=most)
        for most in (_IN_DRIVER, _BY_TASKS)
    )
    assert by_driver == by_tasks


def _staged_of(history: History, **more: Any) -> list[dict[str, Any]]:
    """Return the documents of all steps that a history stages."""
    job, now_ms = job_on_lists(history, **more), history.start_ms
    found: dict[str, dict[str, Any]] = {}
    with ReorderTester(job, partitions=len(PARTITIONS), now_ms=now_ms) as tester:
        sent: dict[tuple[str, int], int] = dict.fromkeys(_PLACES, 0)
        for step in history.steps:
            tester.now_ms += step.passed_ms
            tester.run(rows_of(step, "in", sent)[0])
            for one in (tester.folder / "staged").iterdir():
                found[one.name] = json.loads(one.read_text())
                parts = _parts_of(tester, found[one.name])
                assert parts <= (1 if more["small_batch_rows"] else len(PARTITIONS))
    for document in found.values():
        run = document.get("run") or {}
        for name in ("name", "size_bytes"):
            run.pop(name, None)
        for name in ("owner", "life"):
            document.pop(name, None)
    return [found[name] for name in sorted(found)]


def _parts_of(tester: ReorderTester, staged: dict[str, Any]) -> int:
    """Return how many files a batch was staged as; 0 where they are deleted, or there were none."""
    run = staged.get("run")
    names = tester.folder / "runs" / run["name"] / "files.json" if run else None
    if names is None or not names.exists():
        return 0
    return len(json.loads(names.read_text())["files"])


def _newest_parts(tester: ReorderTester) -> int:
    return _parts_of(tester, json.loads(max((tester.folder / "staged").iterdir()).read_text()))


@pytest.mark.promise("order-small-batches")
@pytest.mark.parametrize("before", [_IN_DRIVER, _BY_TASKS])
def test_a_batch_that_is_staged_again_may_go_the_other_way(before: int) -> None:
    """As where the process died before the batch was logged, and was given other settings."""
    history = History((), delay_ms=10**6, idle_timeout_ms=10**6, base_ms=0)
    ways = {most: job_on_lists(history, small_batch_rows=most) for most in (_IN_DRIVER, _BY_TASKS)}
    rows = [
        {"key": f"k{n % 3}", "value": f'{{"at":{_NOW_MS + n}}}', "partition": n % 3}
        for n in range(9)
    ]
    with ReorderTester(ways[before], partitions=3, now_ms=_NOW_MS) as tester:
        tester.run(rows)
        tester.run([{**row, "headers": [("again", b"")]} for row in rows])
        assert _newest_parts(tester) == (1 if before else 3)
        for folder in ("staged", "frontier", "done"):
            max((tester.folder / folder).iterdir()).unlink()
        tester.restart(settings=ways[_BY_TASKS if before else _IN_DRIVER], repeats=True)
        assert tester.totals.read == 9
        tester.run()
        assert _newest_parts(tester) == (3 if before else 1)
        tester.drain()
        assert len(tester.released) == tester.totals.read == 18
        assert sum(record.header("again") is not None for record in tester.released) == 9


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

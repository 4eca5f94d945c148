"""Steps that are given to a function: ordered rows, and an id to write them by."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from typing import TYPE_CHECKING, Final

import pytest

from sequitur.spark import reorder
from tests.spark.example_program import WAIT_S, example_program
from tests.support.events import by_partition
from tests.support.on_step import Taken, numbered_events, released_rows
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.spark.conftest import Job


pytestmark = pytest.mark.spark


@pytest.mark.test_all
def test_a_function_is_given_what_the_topic_has(job: Job) -> None:
    """Each row is given once, in its partition and place, with where it came from."""
    job.produce(numbered_events(400))
    job = job.with_settings(max_offsets_per_trigger=120)
    job.on_step = taken = Taken()
    report = job.run(drain=True)
    assert taken.all() == released_rows(job)
    assert report.totals.released == 400
    assert len(taken.steps) > 2
    numbers = [step for _, step, _ in taken.steps]
    assert numbers == sorted(set(numbers))
    assert len({name for name, _, _ in taken.steps}) == len(numbers)
    row = taken.rows[0][min(taken.rows[0])][0]
    assert {name: type(value) for name, value in row.items()} == {
        "event_time_ms": int, "topic": str, "partition": int, "offset": int,
        "timestamp_ms": int, "key": bytes, "value": bytes, "headers": type(None),
    }  # fmt: skip
    assert row["topic"] == job.topic


def test_the_job_starts_from_a_program(job: Job) -> None:
    """`reorder` needs nothing but settings: it takes the session that is there."""
    job.produce(numbered_events(100))
    taken = Taken()
    report = reorder(job.kafka, job.settings, on_step=taken, available_now=True, drain=True)
    assert report.totals.released == 100
    assert taken.all() == released_rows(job)


_KILLED_ONCE_GIVEN: Final = """
import os, runpy, signal, sys
from sequitur.pipelines.ordering.on_step import OnStep
call = OnStep.call
OnStep.call = lambda *named: (call(*named), os.kill(os.getpid(), signal.SIGKILL))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _example(
    job: Job, folder: Path, *flags: str, prelude: str | None = None
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    return example_program(
        "ordered_steps.py",
        *(job.topic, job.settings.output_topic, "--kafka", job.kafka.bootstrap_servers),
        *("--checkpoint", str(folder / "state"), "--db", str(folder / "rows.sqlite"), *flags),
        log=folder / "log",
        prelude=prelude,
    )


def _in_database(path: Path) -> list[tuple[int, bytes]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT at, value FROM readings ORDER BY rowid").fetchall()


@pytest.mark.promise("on-step-job-killed-step")
@pytest.mark.kill
@pytest.mark.slow
def test_rows_are_in_a_database_once(job: Job, tmp_path: Path) -> None:
    """The example: killed before a step is marked, started again, ended by SIGTERM, and drained."""
    database, log = tmp_path / "rows.sqlite", tmp_path / "log"
    job.produce(numbered_events(300))
    with _example(job, tmp_path, prelude=_KILLED_ONCE_GIVEN) as program:
        assert program.wait(WAIT_S) == -signal.SIGKILL, log.read_text()
    given = _in_database(database)
    assert given != []
    job.produce(numbered_events(300, start=300))
    with _example(job, tmp_path) as program:
        wait_until(
            lambda: len(_in_database(database)) > 400 or program.poll() is not None,
            patience_s=WAIT_S,
        )
        program.terminate()
        assert program.wait(WAIT_S) == 0, log.read_text()
    with _example(job, tmp_path, "--available-now") as program:
        assert program.wait(WAIT_S) == 0, log.read_text()
    rows = _in_database(database)
    assert rows[: len(given)] == given
    assert sorted(value for _, value in rows) == sorted(
        sent.value or b"" for sent in [*numbered_events(300), *numbered_events(300, start=300)]
    )
    for records in by_partition(job.released()).values():
        came = {record.value for record in records}
        times = [at for at, value in rows if value in came]
        assert times == sorted(times)

"""Steps that were prepared when the job died: what the next life makes of them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.topology import ProcessSettings, TransactionalTopologyBuilder
from sequitur.consumer.topology.state import OpaqueState, State, TransactionalState
from sequitur.consumer.topology.step.transaction_run import CommitRun
from sequitur.errors import TopologyTaskError
from sequitur.pipelines.store.job_identity import FormerJob
from sequitur.pipelines.topology.processing import Processing
from sequitur.testing import ReorderTester
from tests.support.transactions import Gather, Journal, Noting, counts, faulty_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology.state import SQLStore

_T0 = 1_700_000_000_000
_BAD = "x" * 2_001


class _DeathError(Exception):
    """Stands for the end of the driver."""


def _value(row: str) -> str:
    return str(json.loads(row)["value"])


class Words(Noting):
    """Passes on what events say."""

    def pass_on(self, value: Any) -> None:
        super().pass_on(_value(value))


def _tester(journal: Journal, store: SQLStore, kind: type[State], tasks: int) -> ReorderTester:
    builder = TransactionalTopologyBuilder("prepared", "events")
    builder.set_bolt("words", Words(journal)).shuffle_grouping("events")
    builder.set_bolt(
        "sum", Gather(journal), tasks, states={"count": kind(store, "counts")}
    ).fields_grouping("words", "value")
    builder.set_output("out", topic="counts", key="value", value="after").local_grouping("sum")
    settings = ReorderSettings(
        input_topics=["in"],
        output_topic="ordered",
        checkpoint="none",
        event_time="json:at",
        delay="0 s",
    )
    process = ProcessSettings(retry_delay="1 ms", retry_maximum="1 ms")
    return ReorderTester(settings, builder.build(), process=process)


def _rows(*values: str) -> Iterator[dict[str, str]]:
    for place, value in enumerate(values):
        yield {"value": json.dumps({"at": _T0 + place, "value": value})}


def _run(tester: ReorderTester, *values: str) -> None:
    tester.run(_rows(*values))
    tester.drain()


def _dead(tester: ReorderTester) -> list[str]:
    return [_value((one.value or b"").decode()) for one in tester.records("ordered.dead-letter")]


@pytest.mark.promise("state-state-database-refuses")
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState])
def test_what_a_state_refuses_of_a_prepared_step_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[State], tasks: int
) -> None:
    """No database has anything of it: so the next life may process the step without the event."""
    journal = Journal()
    store = faulty_store(tmp_path, "db", journal)
    with _tester(journal, store, kind, tasks) as tester:
        with monkeypatch.context() as patched:
            patched.setattr(CommitRun, "run", _die)
            with pytest.raises(_DeathError):
                _run(tester, "a", _BAD, "b", "c")
        tester.drain()
        assert counts(store, "counts") == {"a": 1, "b": 1, "c": 1}
        assert sorted(one.key or b"" for one in tester.records("counts")) == [b"a", b"b", b"c"]
        assert _dead(tester) == [_BAD]


@pytest.mark.promise("state-state-database-refuses")
@pytest.mark.parametrize("tasks", [1, 3])
def test_what_a_state_refuses_of_the_batch_after_a_lost_checkpoint_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """The database has the transaction with another batch, and opaque states are computed anew."""
    store = faulty_store(tmp_path, "db", Journal())
    with _tester(Journal(), store, OpaqueState, tasks) as tester:
        _run(tester, "a", "b", "c")
    with closing(sqlite3.connect(tmp_path / "db.db")) as database:
        (epoch,) = database.execute("SELECT epoch FROM sequitur_topologies").fetchone()
    former = FormerJob(lives=5, transaction=0, transactions=epoch)
    took_up = Processing.open
    monkeypatch.setattr(
        Processing, "open", lambda self, done, newest, _: took_up(self, done, newest, former)
    )
    with _tester(Journal(), store, OpaqueState, tasks) as tester:
        _run(tester, "a", _BAD, "b")
        assert counts(store, "counts") == {"a": 1, "b": 1}
        assert sorted(one.key or b"" for one in tester.records("counts")) == [b"a", b"b"]
        assert _dead(tester) == [_BAD]


def _die(_: CommitRun) -> None:
    raise _DeathError


@pytest.mark.parametrize("tasks", [1, 3])
def test_what_is_written_of_a_prepared_step_stays(tmp_path: Path, tasks: int) -> None:
    """The life before died when its first task had committed."""
    journal = Journal()
    store = faulty_store(tmp_path, "db", journal)
    journal.faults["db.committed"] = [_DeathError()]
    with _tester(journal, store, TransactionalState, tasks) as tester:
        with pytest.raises(TopologyTaskError):
            _run(tester, "a", "b", "c", "d")
        processed = len(journal.of("words", "finish"))
        tester.drain()
        assert counts(store, "counts") == dict.fromkeys("abcd", 1)
        assert len(tester.records("counts")) == 4
        assert len(journal.of("words", "finish")) == processed

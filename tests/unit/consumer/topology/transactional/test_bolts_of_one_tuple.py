"""Plain bolts in a transactional topology: they emit at ticks, and events have key and value."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    BasicBolt,
    TransactionalTopologyBuilder,
    TransactionTester,
    bolt,
)
from sequitur.consumer.topology.state import SQLStore, TransactionalState

if TYPE_CHECKING:
    from pathlib import Path


class Windows(BasicBolt):
    """Counts events, and emits the count at each tick."""

    fields = ("transaction", "count")

    def __init__(self) -> None:
        self.count = 0

    def process(self, tuple: Any, collector: Any) -> None:  # noqa: A002
        if not tuple.is_tick:
            self.count += 1
            return
        assert tuple["interval_s"] == 1
        collector.emit((tuple["transaction"], self.count))
        self.count = 0

    def snapshot(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        self.count = state


@bolt(fields=("transaction", "value", "count"))
def said(event: Any) -> Any:
    yield (event[0], f"{event.key} {event.value} {event.headers} {event['value']}", 1)


class Sum(BaseTransactionalBolt):
    """Adds counts up."""

    fields = ("transaction",)

    def __init__(self) -> None:
        self.sum = 0

    def process(self, tuple: Any) -> None:  # noqa: A002
        self.sum += tuple["count"]

    def finish_batch(self) -> None:
        self.context.state("sum").update("all", lambda _, before: (before or 0) + self.sum)


def test_a_basic_bolt_emits_at_ticks(tmp_path: Path) -> None:
    """The tick says which transaction it is of, as events do."""
    store = SQLStore(f"sqlite:///{tmp_path / 'x.db'}")
    builder = TransactionalTopologyBuilder("ticks", "events")
    builder.set_bolt("windows", Windows(), tick_interval="1 s").local_grouping("events")
    builder.set_committer_bolt(
        "sum", Sum(), states={"sum": TransactionalState(store, "sum")}
    ).global_grouping("windows")
    ran = TransactionTester(builder.build())
    for events in (5, 3, 1):
        ran.run([("key", "value")] * events)
        ran.advance(2)
    assert len(ran.acked) == 9
    assert _sum(tmp_path) == 8


@pytest.mark.parametrize("grouping", ["local", "shuffle"])
def test_an_event_has_key_value_and_headers(tmp_path: Path, grouping: str) -> None:
    """Behind the transaction, also in another stage than the spout's."""
    store = SQLStore(f"sqlite:///{tmp_path / 'x.db'}")
    builder = TransactionalTopologyBuilder("events", "events")
    getattr(builder.set_bolt("said", said), f"{grouping}_grouping")("events")
    builder.set_output("out", key=None, value="value").local_grouping("said")
    builder.set_committer_bolt(
        "sum", Sum(), states={"sum": TransactionalState(store, "sum")}
    ).global_grouping("said")
    ran = TransactionTester(builder.build())
    ran.run([("k", "v")])
    assert ran.records("out") == [(None, b"b'k' b'v' () b'v'")]
    assert _sum(tmp_path) == 1


def _sum(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "x.db")) as connection:
        ((found,),) = connection.execute("SELECT value FROM sum").fetchall()
    return int(found)

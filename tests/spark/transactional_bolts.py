"""Bolts of transactional topologies, for tests on Spark."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.state.sql.store import SQLStore
from sequitur.consumer.topology.state.store import OpaqueState, State, TransactionalState
from sequitur.consumer.topology.transactional.builder import (
    BaseTransactionalBolt,
    Committer,
    TransactionalTopologyBuilder,
)
from sequitur.errors import FailBatch
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology.api.tuple import Tuple
    from sequitur.consumer.topology.transactional.builder import TransactionalTopology
    from tests.support.broker_job import BrokerJob
    from tests.support.list_job import ListJob


class CountBatch(BaseTransactionalBolt):
    """Counts the events of its part of a batch; an event with `fails` fails so many attempts.

    Args:
        folder: Where it leaves the number of each transaction that it is given events of.
    """

    fields = ("transaction", "count")

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self._count = 0

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        (self._folder / f"processed-{self.transaction.transaction_id}").touch()
        event = json.loads(tuple["value"])
        if tuple.attempt <= event.get("fails", 0):
            raise ValueError(f"attempt {tuple.attempt}")
        self._count += 1

    def finish_batch(self) -> None:
        self.collector.emit((self.transaction, self._count))


class UpdateCount(BaseTransactionalBolt, Committer):
    """Adds the counts of a batch to that of all.

    Args:
        folder: Where it finds out what is to go wrong: each file there does so once.
        holds_first_until: The first commit waits until this transaction is processed; 0 for none.
    """

    fields = ("transaction", "number", "before", "count")

    def __init__(self, folder: Path, holds_first_until: int) -> None:
        self._folder = folder
        self._holds_until = holds_first_until

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self._count = 0

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self._count += tuple["count"]

    def finish_batch(self) -> None:
        number = self.transaction.transaction_id
        if number == 1 and self._holds_until:
            held_back = self._folder / f"processed-{self._holds_until}"
            wait_until(held_back.exists)
        ((before, after),) = self.context.state("count").multi_update(
            ["all"], lambda _, count: (count or 0) + self._count
        )
        if (self._folder / "fails").exists():
            (self._folder / "has-failed").touch()
            raise FailBatch("as long as this is asked for")
        if self._goes_wrong("fail"):
            raise FailBatch("as asked for")
        if self._goes_wrong("raise"):
            raise ValueError("as asked for")
        if self._goes_wrong("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        with (self._folder / "commits").open("a") as commits:
            commits.write(f"{number}\n")
        self.collector.emit((self.transaction, number, before, after))

    def _goes_wrong(self, how: str) -> bool:
        try:
            (self._folder / how).unlink()
        except FileNotFoundError:
            return False
        return True


def global_count(
    folder: Path,
    *,
    url: str = "",
    is_opaque: bool = False,
    holds_first_until: int = 0,
    is_told: bool = True,
) -> TransactionalTopology:
    """Count all events; what is written is the number of the batch, and the count of all.

    Args:
        folder: Where the database is, and what is to go wrong.
        url: Another database.
        is_opaque: The kind of its state.
        holds_first_until: See `UpdateCount`.
        is_told: Whether anything is written to Kafka.
    """
    store = SQLStore(url or f"sqlite:///{folder}/state.db")
    kind: type[State] = OpaqueState if is_opaque else TransactionalState
    builder = TransactionalTopologyBuilder("global-count", "events")
    builder.set_bolt("partial-count", CountBatch(folder), 3).shuffle_grouping("events")
    builder.set_bolt(
        "sum", UpdateCount(folder, holds_first_until), states={"count": kind(store, "global_count")}
    ).global_grouping("partial-count")
    if is_told:
        builder.set_output("counts", key=None, value=None).local_grouping("sum")
    return builder.build()


def count_in(folder: Path) -> tuple[Any, ...]:
    """Value, previous value and transaction id of the count of all."""
    with sqlite3.connect(folder / "state.db") as database:
        ((value, previous, txid),) = database.execute(
            "SELECT value, previous, txid FROM global_count"
        )
    return value, previous, txid


def written(job: BrokerJob | ListJob) -> list[dict[str, int]]:
    found = [json.loads(record.value or b"") for record in job.released()]
    return sorted(found, key=lambda one: one["number"])

"""Counts all events: the parts of a batch side by side, and one write a batch to a database.

After TransactionalGlobalCount of Storm's starter project. A batch is a transaction: whatever fails,
dies or is repeated, each event is in the count once, and each count is in the topic once. So 1,000
events of a batch cost one update of one row.

Run it, with `STATE_URL` naming the database, and `STATE_PASSWORD` holding the password if there is
one; without a name the count is in the file `global_count.db` of SQLite, in the working directory::

    export STATE_URL=postgresql+psycopg://sequitur@127.0.0.1/sequitur
    sequitur process examples/transactional_global_count.py --config job.toml

or try it without Kafka and without Spark::

    >>> from tempfile import TemporaryDirectory
    >>> from sequitur import TransactionTester
    >>> folder = TemporaryDirectory()
    >>> tester = TransactionTester(build(f"sqlite:///{folder.name}/count.db"))
    >>> tester.run([("page 1", "to be"), ("page 2", "or not to be")])
    >>> tester.run([("page 3", "that is the question")])
    >>> tester.records("counts")
    [(b'1', b'2'), (b'2', b'3')]
    >>> folder.cleanup()
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from sequitur import (
    BaseTransactionalBolt,
    Committer,
    OrderedStreamSpout,
    SQLStore,
    TransactionalState,
    TransactionalTopologyBuilder,
)

if TYPE_CHECKING:
    from sequitur import TransactionalTopology, Tuple

KEY: Final = "all"
"""The one key of the state."""


class BatchCount(BaseTransactionalBolt):
    """How many events of a batch come to a task; each batch has an instance of its own."""

    fields = ("transaction", "count")

    def __init__(self) -> None:
        self.count = 0

    def process(self, tuple: Tuple) -> None:  # noqa: A002, ARG002
        """Count an event."""
        self.count += 1

    def finish_batch(self) -> None:
        """Emit the partial count, with the batch's transaction as its first field."""
        self.collector.emit((self.transaction, self.count))


class UpdateGlobalCount(BaseTransactionalBolt, Committer):
    """Adds up the partial counts of a batch, and adds them to the count of all in the database.

    A committer: its `finish_batch` is called batch by batch, in the order of their ids.
    """

    fields = ("transaction", "batch", "count")

    def __init__(self) -> None:
        self.sum = 0

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Take a partial count."""
        self.sum += tuple["count"]

    def finish_batch(self) -> None:
        """Update the count; a repeat of the batch finds the count that it found the first time."""
        state = self.context.state("count")
        _, count = state.update(KEY, lambda _, before: (before or 0) + self.sum)
        self.collector.emit((self.transaction, self.transaction.transaction_id, count))


def build(url: str) -> TransactionalTopology:
    """Return the topology, with its count in a database."""
    password = "STATE_PASSWORD" if "STATE_PASSWORD" in os.environ else None
    store = SQLStore(url, password_env=password)
    builder = TransactionalTopologyBuilder("global-count", "events", OrderedStreamSpout())
    builder.set_bolt("partial-count", BatchCount(), 5).shuffle_grouping("events")
    builder.set_bolt(
        "sum", UpdateGlobalCount(), states={"count": TransactionalState(store, "global_count")}
    ).global_grouping("partial-count")
    builder.set_output("counts", topic="global-count", key="batch", value="count").local_grouping(
        "sum"
    )
    return builder.build()


topology = build(os.environ.get("STATE_URL", "sqlite:///global_count.db"))

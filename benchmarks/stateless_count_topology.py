"""TransactionalGlobalCount without its state: what the state costs is the difference."""

from __future__ import annotations

from examples.transactional_global_count import BatchCount, UpdateGlobalCount
from sequitur import TransactionalTopologyBuilder


class SumBatch(UpdateGlobalCount):
    """Adds up the partial counts of a batch, and nothing else."""

    def finish_batch(self) -> None:
        """Emit how many events the batch has."""
        self.collector.emit((self.transaction, self.transaction.transaction_id, self.sum))


builder = TransactionalTopologyBuilder("stateless-count", "events")
builder.set_bolt("partial-count", BatchCount(), 5).shuffle_grouping("events")
builder.set_bolt("sum", SumBatch()).global_grouping("partial-count")
builder.set_output("counts", topic="stateless-count", key="batch", value="count").local_grouping(
    "sum"
)
topology = builder.build()

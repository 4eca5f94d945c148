"""TransactionalWords whose bolts fail now and then: for rounds of killing.

Its sentences are made of the events' own numbers. The topics that it writes to are in the
environment, as `WORD_TOPIC` and `BUCKET_TOPIC`.
"""

from __future__ import annotations

import json
import os
from random import random
from typing import TYPE_CHECKING

from examples.transactional_words import Bucketize, CountBuckets, CountPart, CountWords
from sequitur import (
    FailBatch,
    OpaqueState,
    SQLStore,
    TransactionalState,
    TransactionalTopologyBuilder,
)
from tests.support.word_states import words_of

if TYPE_CHECKING:
    from sequitur import TransactionAttempt, TransactionContext, Tuple


_CHANCE = 1 / 2000
"""Each try of a batch of 400 makes some 800 calls: most batches need a try or two more for it."""


def _maybe_fail() -> None:
    if random() < _CHANCE:
        raise ConnectionError("503")


def _tried(context: TransactionContext, transaction: TransactionAttempt, of: int) -> int:
    """A number below `of`, another one at the next try, and in the component's other task."""
    return (transaction.attempt_id + context.task) % of


class FailingPart(CountPart):
    """Fails one of 400 events at its first attempt, one of 1,000 at each, and some by chance."""

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        number = json.loads(tuple["value"])["n"]
        if number % 1000 == 500 or (number % 400 == 7 and tuple.attempt == 1):
            raise ValueError("not yet")
        _maybe_fail()
        self.counts.update(words_of(number))


class FailingCount(CountWords):
    """Fails few of its calls, and some tries before it has written, in one of its tasks."""

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Take a partial count, or fail."""
        _maybe_fail()
        super().process(tuple)

    def finish_batch(self) -> None:
        super().finish_batch()
        if _tried(self.context, self.transaction, 7) == 2:
            raise FailBatch("as asked for")


class FailingMoves(Bucketize):
    """Fails few of its calls, and some tries when the words are written."""

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        _maybe_fail()
        super().process(tuple)

    def finish_batch(self) -> None:
        super().finish_batch()
        if _tried(self.context, self.transaction, 9) == 4:
            raise ValueError("not now")


class FailingBuckets(CountBuckets):
    """Fails some tries when the words are written, and perhaps buckets of the other task."""

    def finish_batch(self) -> None:
        super().finish_batch()
        if _tried(self.context, self.transaction, 8) == 5:
            raise FailBatch("as asked for")


store = SQLStore(os.environ["STATE_URL"])
builder = TransactionalTopologyBuilder("failing-words", "events")
builder.set_bolt("part", FailingPart()).local_grouping("events")
builder.set_bolt(
    "count", FailingCount(), 2, states={"counts": TransactionalState(store, "word_counts")}
).fields_grouping("part", "word")
builder.set_bolt("bucketize", FailingMoves()).local_grouping("count")
builder.set_bolt(
    "bucket", FailingBuckets(), 2, states={"buckets": OpaqueState(store, "word_buckets", key=int)}
).fields_grouping("bucketize", "bucket")
builder.set_output("counts", topic=os.environ["WORD_TOPIC"], key="word", value=None).local_grouping(
    "count"
)
builder.set_output(
    "buckets", topic=os.environ["BUCKET_TOPIC"], key="bucket", value=None
).local_grouping("bucket")
topology = builder.build()

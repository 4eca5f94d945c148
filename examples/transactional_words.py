"""Counts words in a database, and how many words there are of each frequency.

After TransactionalWords of Storm's starter project. A word that was seen 0 to 9 times is in bucket
0, one that was seen 10 to 19 times in bucket 1, and so on. When a batch moves a word from one
bucket to another, the one has a word less and the other a word more. That stays true whatever
fails, dies or is repeated, as each batch is a transaction: both tables hold each batch once, and so
do both topics.

Run it on a topic of sentences, with `STATE_URL` naming the database, and `STATE_PASSWORD` holding
the password if there is one; without a name the counts are in the file `words.db` of SQLite, in the
working directory::

    export STATE_URL=postgresql+psycopg://sequitur@127.0.0.1/sequitur
    sequitur process examples/transactional_words.py --config job.toml

or try it without Kafka and without Spark::

    >>> from tempfile import TemporaryDirectory
    >>> from sequitur import TransactionTester
    >>> folder = TemporaryDirectory()
    >>> tester = TransactionTester(build(f"sqlite:///{folder.name}/words.db"))
    >>> tester.run([("page 1", "be " * 9), ("page 2", "to be or not to be")])
    >>> sorted(tester.records("counts"))[0]
    (b'be', b'{"batch":1,"before":0,"count":11}')
    >>> tester.records("buckets")  # one word was seen 10 to 19 times, three fewer
    [(b'0', b'{"batch":1,"words":3}'), (b'1', b'{"batch":1,"words":1}')]
    >>> folder.cleanup()
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from sequitur import (
    BaseTransactionalBolt,
    Committer,
    OpaqueState,
    OrderedStreamSpout,
    SQLStore,
    TransactionalState,
    TransactionalTopologyBuilder,
)

if TYPE_CHECKING:
    from sequitur import TransactionalTopology, Tuple

BUCKET_SIZE: Final = 10
"""A bucket is this wide."""


class CountPart(BaseTransactionalBolt):
    """How often each word is in a task's part of a batch."""

    fields = ("transaction", "word", "count")

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Count the words of a sentence."""
        if tuple["value"] is not None:
            self.counts.update(tuple["value"].decode().lower().split())

    def finish_batch(self) -> None:
        """Emit each word with its partial count."""
        for word, count in self.counts.items():
            self.collector.emit((self.transaction, word, count))


class CountWords(BaseTransactionalBolt, Committer):
    """Adds the partial counts of a batch to those in the database."""

    fields = ("transaction", "word", "batch", "before", "count")

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Take a partial count."""
        self.counts[tuple["word"]] += tuple["count"]

    def finish_batch(self) -> None:
        """Update all words of the batch at once; emit what each had before, and has now."""
        updated = self.context.state("counts").multi_update(
            self.counts, lambda word, before: (before or 0) + self.counts[word]
        )
        batch = self.transaction.transaction_id
        for word, (before, count) in zip(self.counts, updated, strict=True):
            self.collector.emit((self.transaction, word, batch, before or 0, count))


class Bucketize(BaseTransactionalBolt):
    """How many words more, or fewer, each bucket has by a batch.

    It commits nothing. But it stands behind a committer, so it has its whole batch only when that
    commits, and its `finish_batch` is called then.
    """

    fields = ("transaction", "bucket", "more")

    def __init__(self) -> None:
        self.more: Counter[Any] = Counter()

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Move a word from its bucket to another, if its new count is there."""
        before, after = tuple["before"] // BUCKET_SIZE, tuple["count"] // BUCKET_SIZE
        if tuple["before"] > 0 and before != after:
            self.more[before] -= 1
        if tuple["before"] == 0 or before != after:
            self.more[after] += 1

    def finish_batch(self) -> None:
        """Emit each bucket that changes."""
        for bucket, more in self.more.items():
            if more:
                self.collector.emit((self.transaction, bucket, more))


class CountBuckets(BaseTransactionalBolt, Committer):
    """Keeps in the database how many words are in each bucket."""

    fields = ("transaction", "bucket", "batch", "words")

    def __init__(self) -> None:
        self.more: Counter[Any] = Counter()

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Take what one task's words change of a bucket."""
        self.more[tuple["bucket"]] += tuple["more"]

    def finish_batch(self) -> None:
        """Update all buckets of the batch at once."""
        buckets = sorted(self.more)
        updated = self.context.state("buckets").multi_update(
            buckets, lambda bucket, before: (before or 0) + self.more[bucket]
        )
        batch = self.transaction.transaction_id
        for bucket, (_, words) in zip(buckets, updated, strict=True):
            self.collector.emit((self.transaction, bucket, batch, words))


def build(url: str, part: CountPart | None = None) -> TransactionalTopology:
    """Return the topology, with its counts in a database.

    Args:
        url: The database.
        part: Counts the words of events, if these are not sentences.
    """
    password = "STATE_PASSWORD" if "STATE_PASSWORD" in os.environ else None
    store = SQLStore(url, password_env=password)
    builder = TransactionalTopologyBuilder("words", "sentences", OrderedStreamSpout())
    builder.set_bolt("part", part or CountPart()).local_grouping("sentences")
    # Either kind goes with the ordered stream, whose batches are the same at each try.
    builder.set_bolt(
        "count", CountWords(), 2, states={"counts": TransactionalState(store, "word_counts")}
    ).fields_grouping("part", "word")
    builder.set_bolt("bucketize", Bucketize()).local_grouping("count")
    builder.set_bolt(
        "bucket", CountBuckets(), 2, states={"buckets": OpaqueState(store, "word_buckets", key=int)}
    ).fields_grouping("bucketize", "bucket")
    builder.set_output("counts", topic="word-counts", key="word", value=None).local_grouping(
        "count"
    )
    builder.set_output("buckets", topic="word-buckets", key="bucket", value=None).local_grouping(
        "bucket"
    )
    return builder.build()


topology = build(os.environ.get("STATE_URL", "sqlite:///words.db"))

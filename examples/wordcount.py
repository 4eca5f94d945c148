"""Counts words: sentences in, the number of times each word was seen out.

Run it on a topic of sentences, with a job.toml as in the README::

    sequitur process examples/wordcount.py --config job.toml

or try it without Kafka and without Spark::

    >>> from sequitur import TopologyTester
    >>> tester = TopologyTester(topology)
    >>> tester.run([("page 1", "to be or not to be")])
    >>> tester.records("counts")[-1]
    (b'be', b'2')
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sequitur import BasicBolt, BasicOutputCollector, TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, Tuple


@bolt(fields=("word",))
def split(sentence: Event) -> Iterator[str]:
    """Each word of a sentence. What is yielded is anchored to the sentence, which is then acked."""
    if sentence.value is not None:
        yield from sentence.value.decode().lower().split()


class Count(BasicBolt):
    """How often each word was seen. All tuples of a word come to the same task."""

    fields = ("word", "count")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        """Count a word."""
        word = tuple["word"]
        self.counts[word] += 1
        collector.emit((word, self.counts[word]))

    def snapshot(self) -> dict[str, int]:
        """The counts go on in the next batch, and after a restart."""
        return dict(self.counts)

    def restore(self, state: Any) -> None:
        """Go on from there."""
        self.counts = Counter(state)


builder = TopologyBuilder("wordcount")
builder.set_spout("sentences")
builder.set_bolt("split", split).local_grouping("sentences")
builder.set_bolt("count", Count(), parallelism=2).fields_grouping("split", "word")
builder.set_output("counts", topic="word-counts", key="word", value="count").local_grouping("count")

topology = builder.build()

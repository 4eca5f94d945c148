"""The topics that a job reads, as they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.pipelines._errors import TopicError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.pipelines.ordering.context import JobContext


def input_topics(job: JobContext, written: Sequence[str] = ()) -> dict[str, int]:
    """Return the input topics that are there now, and how many partitions each has.

    Args:
        job: What its parts share.
        written: Topics that it writes, which a pattern must not match.

    Raises:
        TopicError: There is none, or the job would read what it writes.
    """
    wanted = job.settings.input_pattern
    if wanted is None:
        return {topic: job.topics.require(topic) for topic in job.settings.input_topics}
    # Spark matches by Java's rules, so these have to tell.
    jvm: Any = job.spark.sparkContext._jvm  # noqa: SLF001 - the way to Java's patterns
    try:
        pattern = jvm.java.util.regex.Pattern.compile(wanted)
    except (Py4JError, PySparkException) as error:
        raise TopicError(f"input_pattern {wanted!r} is no regular expression of Java") from error

    def matches(topic: str) -> bool:
        return bool(pattern.matcher(topic).matches())

    return job.topics.matching(wanted, matches, written)

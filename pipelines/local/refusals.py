"""What is refused before the start: what this machine alone cannot do, or might do otherwise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sequitur.errors import CheckpointError, TopicError
from sequitur.pipelines.ordering.preflight import SAME_IN_JAVA

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.reorder import ReorderSettings


_HDFS: Final = ("hdfs:", "viewfs:", "webhdfs:", "swebhdfs:")


def check_local(settings: ReorderSettings) -> None:
    if settings.checkpoint.startswith(_HDFS):
        raise CheckpointError(
            f"checkpoint {settings.checkpoint}: the local runner does not write to HDFS. Give a "
            'local folder or an object store (s3, gs, abfs), or runner = "spark"'
        )
    if settings.input_pattern is not None:
        checked_pattern(settings.input_pattern)


def checked_pattern(pattern: str) -> str:
    """Return an `input_pattern` that Python and Java (so Spark) read alike."""
    if SAME_IN_JAVA.fullmatch(pattern) is None:
        raise TopicError(
            f"input_pattern {pattern!r}: Java may read it otherwise than the local runner. Use "
            r"letters, digits and _ . * + ? | ( ) - and \. alone, or give runner = "
            '"spark"'
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise TopicError(f"input_pattern {pattern!r}: {error}") from error
    return pattern


def matcher_of(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(checked_pattern(pattern))
    return lambda topic: compiled.fullmatch(topic) is not None

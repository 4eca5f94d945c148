"""Spark's part of a checkpoint, by Hadoop's file systems."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JJavaError

from sequitur.errors import CheckpointError
from sequitur.pipelines.store.hadoop_folder import HadoopFolder

if TYPE_CHECKING:
    from collections.abc import Callable


class _RefusedError(Py4JJavaError):  # type: ignore[misc] # it has no types
    """An error of Java's, without a JVM to ask for its stack."""

    def __init__(self, said: str) -> None:
        self.java_exception = SimpleNamespace(toString=lambda: said)

    def __str__(self) -> str:
        return "An error occurred while calling o86.exists."


@pytest.mark.parametrize(
    "ask",
    [
        lambda folder: folder.exists("spark"),
        lambda folder: folder.names("spark/offsets"),
        lambda folder: folder.read("spark/metadata"),
        lambda folder: folder.delete("spark"),
    ],
)
def test_refusal_of_a_store_is_named(ask: Callable[[HadoopFolder], Any]) -> None:
    """With another region in Hadoop's settings than in ours, only Spark's part is refused."""
    folder = object.__new__(HadoopFolder)
    said = "AWSBadRequestException: getFileStatus on s3a://bucket/job: Bad Request\n\tat line"
    refused = Mock(side_effect=_RefusedError(said))
    folder._jvm = Mock()
    folder._root = SimpleNamespace(toString=lambda: "s3a://bucket/job")
    folder._files = SimpleNamespace(exists=refused, list=refused, open=refused, delete=refused)
    with pytest.raises(CheckpointError) as caught:
        ask(folder)
    told = str(caught.value)
    assert told.startswith("checkpoint s3a://bucket/job: Spark, which writes its own part there")
    assert f"{said}. Has it" in told

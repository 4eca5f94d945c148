"""What a query died of: it passes by itself, or does not."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException, PythonException

from sequitur.errors import (
    CheckpointError,
    ReorderError,
    SinkError,
    SinkUnansweredError,
    TopicError,
    UnansweredError,
)
from sequitur.pipelines.ordering.restarts import passes as ours_passes
from sequitur.pipelines.ordering.spark_query import end_query, is_sparks, passes

_KAFKA = "org.apache.kafka.common.errors"


def _of_spark(said: str) -> Exception:
    error = ReorderError("Spark gave up")
    error.__cause__ = PySparkException(said)
    return error


@pytest.mark.promise("order-kafka-away-minutes")
@pytest.mark.parametrize(
    "said",
    [
        f"Caused by: {_KAFKA}.TimeoutException: Timeout of 60000ms expired before the position",
        f"{_KAFKA}.FencedLeaderEpochException: The leader epoch in the request is older",
        f"{_KAFKA}.UnknownLeaderEpochException",
        f"{_KAFKA}.LeaderNotAvailableException",
        "java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 120000 ms",
        "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given",
    ],
)
def test_brokers_that_are_away_pass(said: str) -> None:
    """Whatever of Kafka's clients in Spark says so."""
    assert passes(_of_spark(said))


@pytest.mark.promise("order-kafka-away-minutes")
@pytest.mark.parametrize(
    "said",
    [
        f"{_KAFKA}.TopicAuthorizationException: Not authorized to access topics",
        f"{_KAFKA}.SaslAuthenticationException: Authentication failed",
        "java.lang.IllegalStateException: Cannot fetch offset 10. Some data may have been lost",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_what_stays_wrong_does_not_pass(said: str) -> None:
    assert is_sparks(_of_spark(said))
    assert not passes(_of_spark(said))


def test_our_own_errors_say_by_their_kind() -> None:
    """Those for brokers that do not answer pass, and no others."""
    assert ours_passes(UnansweredError("no answer"))
    assert ours_passes(SinkUnansweredError("no answer"))
    for error in (TopicError("x"), SinkError("x"), CheckpointError("x"), ValueError("x")):
        assert not ours_passes(error)
        assert not passes(error)


@pytest.mark.promise("order-batch-fit-checkpoint")
def test_what_a_task_raised_is_said() -> None:
    """Spark gives its traceback, whose first line says no more than that there is one."""
    said = """
  An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "part_files.py", line 109, in write
OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device
"""
    spark, engine, query = Mock(), Mock(failure=None), Mock(isActive=False)
    error = end_query(spark, query, engine, Mock(error=PythonException(said)))
    assert str(error) == (
        "Spark gave up: OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] "
        "No space left on device"
    )

"""The session that Spark's tests share outlives a test that is ended by its timeout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from pyspark import SparkContext

if TYPE_CHECKING:
    from tests.spark.conftest import SharedSession

pytestmark = pytest.mark.spark


class _TimeoutError(BaseException):
    """As pytest's own, no `Exception`: py4j does not catch it."""


def _be_ended() -> NoReturn:
    raise _TimeoutError


def test_a_session_that_was_broken_within_a_call_is_replaced(
    shared_session: SharedSession,
) -> None:
    """Only the test that took too long fails, and not all behind it."""
    broken = shared_session.get()
    assert shared_session.get() is broken
    gateway: Any = SparkContext._gateway
    connection = gateway._gateway_client.get_thread_connection()
    stream, connection.stream = connection.stream, SimpleNamespace(readline=_be_ended)
    with pytest.raises(_TimeoutError):
        broken.sparkContext._jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]
    connection.stream = stream
    replaced = shared_session.get()
    assert replaced is not broken
    assert replaced.range(3).count() == 3
    assert gateway.proc.poll() is not None

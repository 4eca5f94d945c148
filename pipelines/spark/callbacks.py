"""What Java calls in this process: let go of when its query is over.

py4j keeps a function that `foreachBatch` was given, and with it all that the function refers to,
until Java's collector finds that the query is gone. A function that refers to its query keeps that
from happening. It also keeps a connection, and a thread here, for each of Java's threads that has
called, though each query has a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import java_import
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.utils import ForeachBatchFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_forgotten: Final[set[str]] = set()


class _Forgotten(logging.Filter):
    """Drops py4j's warning when Java's collector finds an object that Python has forgotten."""

    def filter(self, record: logging.LogRecord) -> bool:
        name = record.getMessage().rpartition(" ")[2]
        if name not in _forgotten:
            return True
        _forgotten.discard(name)
        return False


_FILTER: Final = _Forgotten()


class _BatchIds(ForeachBatchFunction):
    """Passes on the session of the query in place of a batch's rows."""

    func: Callable[..., None]

    def call(self, jdf: object, batch_id: int) -> None:
        del jdf
        self.func(self.session, batch_id)


def for_each_batch(
    spark: SparkSession, writer: DataStreamWriter, function: Callable[[SparkSession, int], None]
) -> None:
    """Have a query call a function with its session and the number of each batch.

    `foreachBatch` makes a DataFrame and a session for each batch, by a dozen calls into Java.
    """
    gateway = _gateway(spark)
    java_import(gateway.jvm, "org.apache.spark.sql.execution.streaming.sources.*")
    called: Any = function
    calls: Any = _BatchIds(spark, called)
    gateway.jvm.PythonForeachBatchHelper.callForeachBatch(writer._jwrite, calls)  # noqa: SLF001 - as PySpark does
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call] # has no annotations


def calling_connection(spark: SparkSession) -> Any:
    """Return the connection of Java's calls; ask for it in such a call."""
    return _gateway(spark)._gateway_client.get_thread_connection()  # noqa: SLF001 - py4j's own call


def forget(spark: SparkSession, function: Any, connection: Any) -> None:
    """Forget a function of `for_each_batch` whose query is over."""
    logging.getLogger("py4j.java_gateway").addFilter(_FILTER)
    pool = _gateway(spark).gateway_property.pool
    with pool.lock:
        for name, one in [*pool.dict.items()]:
            if getattr(one, "func", None) is function:
                _forgotten.add(name)
                del pool[name]
    if connection is not None and (found := connection.socket) is not None:
        with contextlib.suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)  # its thread, which waits for calls, closes it


def _gateway(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway  # noqa: SLF001 - the way to py4j

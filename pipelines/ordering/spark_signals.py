"""A stop by signal: the running batch ends, Spark commits it, and the job ends with status 0.

Under spark-submit the JVM is our parent. Left alone it would shut Spark down under the running
batch, so two of its signal handlers are replaced:

- SIGTERM comes to one process, and often to the JVM alone: a handler passes it on to us.
- Ctrl-C reaches the whole group, us too, so the JVM ignores SIGINT. It must not even handle it:
  Hadoop runs `chmod` for each local file it creates, and a child process takes over what is ignored
  but not what is handled, so Ctrl-C would end that `chmod`, and with it the batch.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Event

    from pyspark.sql import SparkSession


@contextlib.contextmanager
def stop_on_signals(stop: Event, spark: SparkSession) -> Iterator[None]:
    """Set `stop` on SIGINT and SIGTERM, here and in the JVM, for as long as the block runs.

    For the main thread, after the session was started: Spark installs a handler of its own.
    """
    from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415

    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call] # noqa: SLF001
    python = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    misc = context._jvm.sun.misc  # noqa: SLF001
    handlers = {"INT": misc.SignalHandler.SIG_IGN, "TERM": _JavaHandler(stop)}
    java = {name: misc.Signal.handle(misc.Signal(name), one) for name, one in handlers.items()}
    try:
        yield
    finally:
        for name, before in java.items():
            misc.Signal.handle(misc.Signal(name), before)
        for number, handler in python.items():
            signal.signal(number, handler)


class _JavaHandler:
    """`sun.misc.SignalHandler`, called by the JVM."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def handle(self, _signal: object) -> None:
        self._stop.set()

    class Java:
        implements: Final = ["sun.misc.SignalHandler"]

"""A stop by signal: the running batch ends, Spark commits it, and the job ends with status 0.

Under spark-submit the JVM is our parent. Left alone it would shut Spark down under the running
batch, so it is told otherwise for the two signals:

- SIGTERM comes to one process, and often to the JVM alone: a handler passes it on to us.
- Ctrl-C reaches the whole group, us too, so the JVM ignores SIGINT. It must not even handle it:
  Hadoop runs `chmod` for each local file it creates, and a child process takes over what is ignored
  but not what is handled, so Ctrl-C would end that `chmod`, and with it the batch.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Stop:
    """Whether the job was asked to stop."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        """Whether it was."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask the job to stop; asking again changes nothing."""
        self._asked.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the job is asked to stop, at most so long; whether it was."""
        return self._asked.wait(timeout_s)


class _JavaHandler:
    """`sun.misc.SignalHandler`, called by the JVM."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def handle(self, _signal: object) -> None:
        self._stop.ask()

    class Java:
        implements: Final = ["sun.misc.SignalHandler"]


class stop_on_signals:  # noqa: N801 - reads as what it does, in a with statement
    """Ask `stop` on SIGINT and SIGTERM, here and in the JVM, for as long as the block runs.

    For the main thread, after the session was started: Spark installs a handler of its own.

    Args:
        stop: What to ask.
        spark: The session whose JVM gets handlers, too.
    """

    def __init__(self, stop: Stop, spark: SparkSession) -> None:
        self._stop = stop
        self._context: Any = spark.sparkContext
        self._java_handler = _JavaHandler(stop)
        self._python: dict[signal.Signals, Any] = {}
        self._java: dict[str, Any] = {}

    def __enter__(self) -> None:
        from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415

        ensure_callback_server_started(self._context._gateway)  # type: ignore[no-untyped-call] # noqa: SLF001
        for number in (signal.SIGINT, signal.SIGTERM):
            self._python[number] = signal.signal(number, lambda *_: self._stop.ask())
        misc = self._context._jvm.sun.misc  # noqa: SLF001
        handlers = {"INT": misc.SignalHandler.SIG_IGN, "TERM": self._java_handler}
        for name, handler in handlers.items():
            self._java[name] = misc.Signal.handle(misc.Signal(name), handler)

    def __exit__(self, *_: object) -> None:
        misc = self._context._jvm.sun.misc  # noqa: SLF001
        for name, handler in self._java.items():
            misc.Signal.handle(misc.Signal(name), handler)
        for number, handler in self._python.items():
            signal.signal(number, handler)

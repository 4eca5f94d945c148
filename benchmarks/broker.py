"""The broker that a benchmark runs on."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sequitur.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def bench_broker() -> Iterator[str]:
    """The broker named by KAFKA_BOOTSTRAP_SERVERS, or an embedded one of the benchmark's own.

    For the main thread: SIGTERM ends the benchmark in order from now on, with all it has started.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given is not None:
        yield given
        return
    with (
        tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder,
        EmbeddedBroker(Path(folder)) as broker,
    ):
        yield broker.bootstrap_servers

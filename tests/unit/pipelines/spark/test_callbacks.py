"""What Java calls in this process is let go of."""

from __future__ import annotations

import logging
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import PythonProxyPool

from sequitur.pipelines.spark.callbacks import calling_connection, forget
from tests.support.waiting import PATIENCE_S


def _session(pool: PythonProxyPool, connection: Any = None) -> Any:
    gateway = SimpleNamespace(
        gateway_property=SimpleNamespace(pool=pool),
        _gateway_client=SimpleNamespace(get_thread_connection=lambda: connection),
    )
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))


@pytest.mark.promise("on-step-program-calls-reorder")
def test_a_function_is_forgotten_and_others_stay() -> None:
    """And the thread that waited for Java's calls to it ends."""
    ours, theirs, end = SimpleNamespace(), SimpleNamespace(), socket.socketpair()
    pool = PythonProxyPool()
    pool.put(SimpleNamespace(func=ours))
    kept = [pool.put(SimpleNamespace(func=theirs)), pool.put(SimpleNamespace())]
    spark = _session(pool, SimpleNamespace(socket=end[0]))
    end[1].settimeout(PATIENCE_S)
    with end[0], end[1]:
        forget(spark, ours, calling_connection(spark))
        assert [*pool.dict] == kept
        assert end[1].recv(1) == b""


def test_the_collector_warns_of_nothing_that_was_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    function, pool = SimpleNamespace(), PythonProxyPool()
    name = pool.put(SimpleNamespace(func=function), force_id="p701")
    forget(_session(pool), function, None)
    logger = logging.getLogger("py4j.java_gateway")
    caplog.set_level(logging.WARNING, logger.name)  # Spark's sessions in this process set it, too
    said = "Tried to garbage collect non existing python proxy {0}"
    for one in (name, name, "p702"):
        logger.warning(said.format(one))
    assert caplog.messages == [said.format(name), said.format("p702")]

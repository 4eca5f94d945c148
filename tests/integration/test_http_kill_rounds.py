"""`kill -9` of the daemon while a client posts to it: what was answered 202 is there, once.

It is killed when its journal holds batches without an answer, after a body was answered.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon_process import read_partitions
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.integration.conftest import StartDaemon
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.kill, pytest.mark.slow]

_ROUNDS = max(2, int(os.environ.get("SEQUITUR_KILL_ROUNDS", "10")) * 2 // 5)
_SEED = int(os.environ.get("SEQUITUR_KILL_SEED", "4"))
_BODY_EVENTS = 50
_MOST_MOMENTS = 4
_POLL_S = 0.002
_TIMEOUT_S = PATIENCE_S


@dataclass
class Client:
    """Posts numbered events, body after body, and remembers which bodies were answered 202."""

    bodies: list[range] = field(default_factory=list)
    kept: set[range] = field(default_factory=set)

    def post_until_nobody_answers(self, port: int) -> None:
        """A body without an answer is not posted again."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        headers = {"Content-Type": "application/x-ndjson"}
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                first = len(self.bodies) * _BODY_EVENTS
                body = range(first, first + _BODY_EVENTS)
                self.bodies.append(body)
                lines = b"".join(b'{"n":%d,"k":"key-%d"}\n' % (n, n % 7) for n in body)
                connection.request("POST", "/events", lines, headers)
                with connection.getresponse() as response:
                    response.read()
                    assert response.status == 202
                self.kept.add(body)
        connection.close()


def _wait_for_an_answer(client: Client, posting: Future[None]) -> None:
    """Until one more body was answered 202."""
    before = len(client.kept)
    while len(client.kept) == before and not posting.done():
        time.sleep(_POLL_S)


@pytest.mark.promise("in-daemon-reads-folder")
@pytest.mark.timeout(600 + _ROUNDS * 20)
def test_killing_it_under_posts_loses_nothing_that_it_answered_and_doubles_nothing(
    broker: Broker, make_topic: MakeTopic, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """A body without an answer is there wholly or not at all; order holds for all."""
    topic = make_topic(partitions=4)
    words = (
        *("--topic", topic, "--source", "http:127.0.0.1:0", "--key", "json:k", "--name", "web"),
        *("--journal", str(tmp_path / "journal")),
    )
    random = Random(_SEED)
    client = Client()
    with ThreadPoolExecutor() as threads:
        for _ in range(_ROUNDS):
            daemon = start_daemon(*words)
            port = daemon.wait_for("listening")["port"]
            posting = threads.submit(client.post_until_nobody_answers, port)
            daemon.kill_with_unacked_batches(
                tmp_path / "journal",
                functools.partial(_wait_for_an_answer, client, posting),
                times=random.randrange(1, _MOST_MOMENTS),
            )
            posting.result(_TIMEOUT_S)
    daemon = start_daemon(*words)
    daemon.wait_for("listening")
    daemon.signal(signal.SIGTERM)
    assert daemon.end()["kept"] == 0
    partitions = read_partitions(broker.bootstrap_servers, topic)
    numbers = [[json.loads(m.value())["n"] for m in partition] for partition in partitions]
    assert all(a < b for partition in numbers for a, b in pairwise(partition))
    found = Counter(n for partition in numbers for n in partition)
    assert client.kept
    for body in client.bodies:
        copies = {found.pop(n, 0) for n in body}
        assert copies == {1} or (copies == {0} and body not in client.kept)
    assert not found

"""The daemon as a process of its own, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Consumer, TopicPartition

from sequitur.cli.topic_reader import watermarks
from sequitur.producer.journal.report import inspect_journal
from tests.support.held import held
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_LOG_TIMEOUT_S = PATIENCE_S
_END_TIMEOUT_S = PATIENCE_S


class DaemonProcess:
    """One life of `produce-events`, from the start to its end or its killing.

    Args:
        bootstrap_servers: The broker.
        folder: Stands for the user's state folder: journal and dead letters are there.
        arguments: The daemon's flags.
        stdin: What it has for standard input.
        environ: Settings that are no flags.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        folder: Path,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        own = {name: value for name, value in os.environ.items() if "SEQUITUR" not in name}
        own |= {"KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers, "XDG_STATE_HOME": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sequitur.producer", "--log-format", "json", *arguments],
            env={**own, **(environ or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._heard = threading.Condition()
        self._ended = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def log(self) -> str:
        with self._heard:
            return "\n".join(self._lines)

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first log line of this event, once it is there."""
        place = 0
        with self._heard:
            while True:
                for line in self._lines[place:]:
                    place += 1
                    said = _parsed(line)
                    if said.get("event") == event:
                        return said
                if self._ended or not self._heard.wait(_LOG_TIMEOUT_S):
                    raise AssertionError(f"it never said {event!r}:\n" + "\n".join(self._lines))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill_with_unacked_batches(
        self, journal: Path, meanwhile: Callable[[], object], times: int = 1
    ) -> None:
        """SIGKILL, at a moment when batches in its journal have no answer yet.

        Args:
            journal: The journal's folder.
            meanwhile: Gives it something to do; called until there are such batches.
            times: The how manieth such moment it is.
        """
        while times:
            meanwhile()
            with held([self.process.pid]):
                assert self.process.poll() is None, self.log
                times -= has_unacked_batches(journal)
                if not times:
                    self.process.kill()
        self.kill()

    def end(self, status: int = 0) -> dict[str, Any]:
        """Wait until it has ended with this status; its report."""
        self.process.wait(_END_TIMEOUT_S)
        self._listener.join()
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        self.kill()
        assert self.process.returncode == status, self.log
        report: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return report

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._heard:
                self._lines.append(line.rstrip("\n"))
                self._heard.notify_all()
        with self._heard:
            self._ended = True
            self._heard.notify_all()


def has_unacked_batches(journal: Path) -> bool:
    """Whether a journal at rest holds batches that no broker has acknowledged."""
    return any(partition.unacked for partition in inspect_journal(journal).partitions)


def read_partitions(bootstrap_servers: str, topic: str) -> list[list[Any]]:
    """All messages of a topic up to its end now, by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    found = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    bounds = {partition: watermarks(consumer, topic, partition) for partition in found}
    messages: list[list[Any]] = [[] for _ in found]
    consumer.assign([TopicPartition(topic, p, first) for p, (first, _) in bounds.items()])
    left = sum(end - first for first, end in bounds.values())
    while left:
        consumed = consumer.consume(min(left, 10_000), timeout=PATIENCE_S)
        assert consumed, f"topic {topic} ends before its end"
        for message in consumed:
            partition = message.partition()
            assert partition is not None
            assert message.error() is None
            messages[partition].append(message)
        left -= len(consumed)
    consumer.close()
    return messages


def _parsed(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}

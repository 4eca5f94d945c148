"""The brokers that tests run on: embedded, in a container, or one that is already there."""

from __future__ import annotations

import base64
import re
import time
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Protocol

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sequitur.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from pathlib import Path

POLL_S = 0.05
_IDS: Final = re.compile(rb"^(cluster|directory)\.id=.*$", re.MULTILINE)


class Broker(Protocol):
    """A Kafka broker that a test may also disturb."""

    @property
    def bootstrap_servers(self) -> str:
        """Where it answers; the same for its whole life."""

    def start(self) -> str:
        """Start it, or resume it, unless it runs; return once it answers."""

    def stop(self) -> None:
        """End it in order; what it holds stays."""

    def kill(self) -> None:
        """End it by SIGKILL; what it holds stays."""

    def pause(self) -> None:
        """Make it answer nothing more, with its connections left open."""

    def resume(self) -> None:
        """Let a paused one go on."""

    def close(self) -> None:
        """End it for good and remove what it held."""


class EmbeddedTestBroker(EmbeddedBroker):
    """The embedded broker at half the CPU time of its start; pytest removes its folder.

    Kafka formats one folder a process, and the others are copies with ids of their own.
    """

    _formatted: ClassVar[dict[Path, bytes]] = {}

    def __init__(self, directory: Path, **more: Any) -> None:
        super().__init__(directory, short_lived=True, **more)

    def _format_once(self, java: Path, class_path: str) -> None:
        data = self._files.data
        if data.exists():
            return
        if not self._formatted:
            super()._format_once(java, class_path)
            files = [path for path in data.rglob("*") if path.is_file()]
            self._formatted.update({path.relative_to(data): path.read_bytes() for path in files})
        else:
            for name, content in self._formatted.items():
                (data / name).parent.mkdir(parents=True, exist_ok=True)
                (data / name).write_bytes(_IDS.sub(_with_new_id, content))

    def close(self) -> None:
        """End it in order, so that its archive of classes is kept for the next."""
        self.stop()


def _with_new_id(line: re.Match[bytes]) -> bytes:
    return line[1] + b".id=" + base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=")


class ForeignBroker:
    """The broker of ``KAFKA_BOOTSTRAP_SERVERS``: used as it is, and left alone."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def start(self) -> str:
        return self.bootstrap_servers

    def stop(self) -> NoReturn:
        """Skip the test: this broker is not ours to disturb."""
        pytest.skip("needs a broker that it may disturb, and KAFKA_BOOTSTRAP_SERVERS names one")

    def kill(self) -> NoReturn:
        self.stop()

    pause = resume = kill

    def close(self) -> None:
        """Leave it running."""


class SharedBroker(ForeignBroker):
    """The broker of all of a session's processes."""

    def stop(self) -> NoReturn:
        """Fail the test: others are using it."""
        pytest.fail("disturbs the broker that all tests share: mark it own_broker")


def answers(bootstrap_servers: str, timeout_s: float = 1.0) -> bool:
    """Tell whether a broker answers a real request."""
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        return bool(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def wait_until_it_answers(bootstrap_servers: str, timeout_s: float) -> bool:
    """Wait for a broker that is starting; False when it took longer."""
    deadline = time.monotonic() + timeout_s
    while not answers(bootstrap_servers):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True

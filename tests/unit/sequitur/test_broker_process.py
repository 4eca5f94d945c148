"""Whose the recorded process is, without starting a broker."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from sequitur._broker_files import BrokerRecord
from sequitur.broker import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose command line does not look like a broker's."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def _recorded(directory: Path, process: subprocess.Popen[bytes]) -> EmbeddedBroker:
    record = BrokerRecord(port=1, controller_port=2, pid=process.pid)
    (directory / "broker.json").write_bytes(msgspec.json.encode(record))
    return EmbeddedBroker(directory)


def test_a_strangers_process_is_not_taken_for_the_broker(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """The number may be another program's by now: it is neither shown nor ended."""
    broker = _recorded(tmp_path, stranger)
    assert not broker.status().running
    broker.kill()
    assert stranger.poll() is None


def test_a_child_of_ours_is_the_broker_before_its_command_line_shows(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """A process that is being executed has an empty command line, and is not dead for that."""
    broker = _recorded(tmp_path, stranger)
    broker._child = stranger
    assert broker.status().running
    stranger.kill()
    stranger.wait()
    assert not broker.status().running

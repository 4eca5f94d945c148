"""The embedded broker's files, process and JVM, without starting one."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from sequitur.base import ports as _ports
from sequitur.embedded import (
    BrokerRecord,
    EmbeddedBroker,
    Files,
    broker_command,
    lines_since,
    read_record,
    telling_lines,
    write_set_up,
)
from sequitur.pipelines.class_archive import ClassArchive
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


def _properties(files: Files) -> dict[str, str]:
    lines = files.properties.read_text("ascii").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_options_override_our_properties(tmp_path: Path) -> None:
    """Who asks for a property gets it; the others are ours."""
    write_set_up(Files(tmp_path), BrokerRecord(port=1, controller_port=2), {"num.partitions": "3"})
    properties = _properties(Files(tmp_path))
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert properties["num.partitions"] == "3"
    assert properties["auto.create.topics.enable"] == "false"


def test_a_folder_of_any_name_is_written_as_java_reads_it(tmp_path: Path) -> None:
    """Java's properties files are ASCII with escapes."""
    directory = tmp_path / "größe \U0001f600 a\\b"
    directory.mkdir()
    write_set_up(Files(directory), BrokerRecord(port=1, controller_port=2), {})
    assert _properties(Files(directory))["log.dirs"].endswith(
        "gr\\u00f6\\u00dfe \\ud83d\\ude00 a\\\\b/data"
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"port": "x", "controller_port": 1}'])
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broker.json"
    assert read_record(path) is None
    path.write_bytes(content)
    assert read_record(path) is None


def test_the_lines_are_those_of_this_start(tmp_path: Path) -> None:
    """Of a log that is appended to, what an earlier start left is not shown."""
    log = tmp_path / "log"
    assert lines_since(log, 0) == []
    log.write_text("old\n")
    offset = log.stat().st_size
    assert lines_since(log, offset) == []
    with log.open("a") as file:
        file.write("one\ntwo\n")
    assert lines_since(log, offset) == ["one", "two"]
    log.write_text("rolled\n")
    assert lines_since(log, 1000) == ["rolled"]


def test_the_line_that_says_why_is_shown() -> None:
    """It may stand long before the end."""
    lines = ["INFO a", "12:00 ERROR Main why", "java.lang.NoError: x", *["INFO bye"] * 9]
    assert telling_lines(lines, 2) == [*lines[1:3], "...", "INFO bye", "INFO bye"]
    assert telling_lines(lines[:1], 2) == ["INFO a"]


def test_a_chosen_port_is_none_that_clients_are_given() -> None:
    """A client that retries must not be handed the broker's own port while it is down."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:  # noqa: PTH123
        lowest = int(file.read().split()[0])
    first = _ports.choose_free()
    assert first < lowest
    assert _ports.is_free(first)
    assert _ports.choose_free({first}) != first


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


_IN_THE_KERNEL = """
import os, sys
# It waits until its child runs another program, and the child until somebody writes to a pipe.
opens = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opens])
input()
"""


def test_a_paused_broker_is_stopped_when_the_call_returns(tmp_path: Path) -> None:
    """SIGSTOP only asks for it: a thread within the kernel stops when it leaves that."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", _IN_THE_KERNEL, str(pipe)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        broker = _recorded(tmp_path, process)
        broker._child = process
        found = psutil.Process(process.pid)

        def pause() -> str:
            broker.pause()
            return found.status()

        try:
            wait_until(lambda: found.status() == psutil.STATUS_DISK_SLEEP)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                paused = pool.submit(pause)
                wait_until(lambda: paused.done() or _is_asked_to_stop(process))
                pipe.write_text("")
                assert paused.result() == psutil.STATUS_STOPPED
        finally:
            process.kill()


def _is_asked_to_stop(process: subprocess.Popen[bytes]) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (pending,) = (line.split()[1] for line in lines if line.startswith("ShdPnd:"))
    return bool(int(pending, 16) & 1 << (signal.SIGSTOP - 1))


@pytest.mark.parametrize("short_lived", [False, True])
def test_only_a_short_lived_broker_does_without_the_optimising_compiler(
    tmp_path: Path, *, short_lived: bool
) -> None:
    """Under load it would cost throughput."""
    command = broker_command(
        Path("java"),
        "a.jar",
        heap_mib=256,
        short_lived=short_lived,
        log4j=tmp_path / "log4j2.properties",
        archive=ClassArchive(tmp_path / "shared", tmp_path / "own"),
    )
    assert ("-XX:TieredStopAtLevel=1" in command) == short_lived
    assert "-Xmx256m" in command

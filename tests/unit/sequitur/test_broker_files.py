"""The files of the embedded broker are written as Kafka reads them, and read back with care."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur import _ports
from sequitur._broker_files import (
    BrokerRecord,
    Files,
    lines_since,
    read_record,
    telling_lines,
    write_set_up,
)

if TYPE_CHECKING:
    from pathlib import Path


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

"""`sequitur journal`: what it prints, and the status that a script goes by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from sequitur.cli import app
from sequitur.kafka.identity import Identity
from sequitur.producer.journal.frames import Position, Renewal
from sequitur.producer.journal.journal import Journal
from tests.unit.producer.journal.test_journal import ack, batch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A sound journal: one batch acked, one not."""
    with Journal.open(tmp_path, producer="cpu-readings") as journal:
        journal.append([Renewal(Identity(7, 0)), batch(0), Position("file", b"line 10")])
        journal.append([batch(10)])
        journal.append([ack(batch(0))])
    return tmp_path


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["journal", *words])


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_sound_journal_is_printed_with_status_0(directory: Path, command: str) -> None:
    """For people: with the producer's name, its positions and what is not acknowledged."""
    result = _run(command, str(directory))
    assert result.exit_code == 0
    for text in ("sound", "cpu-readings", "position of file", "line 10", "un-acked"):
        assert text in result.output


@pytest.mark.parametrize("command", ["show", "verify"])
def test_json_is_for_programs(directory: Path, command: str) -> None:
    report = json.loads(_run(command, str(directory), "--json").output)
    assert report["verdict"] == "sound"
    assert report["producer"] == "cpu-readings"
    assert report["positions"] == {"file": "line 10"}
    assert [each["base_sequence"] for each in report["partitions"][0]["unacked"]] == [10]


def test_verify_ends_with_1_when_a_frame_is_damaged(directory: Path) -> None:
    """And says where; to look at such a journal is no failure of `show`."""
    segment = min(directory.glob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    verified = _run("verify", str(directory))
    assert verified.exit_code == 1
    assert "corrupt" in verified.output
    assert segment.name in verified.output
    assert _run("show", str(directory)).exit_code == 0


def test_a_torn_tail_is_sound(directory: Path) -> None:
    """A crash leaves one; the next start cuts it off."""
    segment = max(directory.glob("*.journal"))
    segment.write_bytes(segment.read_bytes()[:-3])
    verified = _run("verify", str(directory))
    assert verified.exit_code == 0
    assert "torn tail" in verified.output


@pytest.mark.parametrize("command", ["show", "verify"])
def test_no_journal_ends_with_2(tmp_path: Path, command: str) -> None:
    """Neither a folder that is missing nor one without a journal is one."""
    for folder in (tmp_path, tmp_path / "missing"):
        result = _run(command, str(folder))
        assert result.exit_code == 2
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"sequitur: {folder}: unreadable: ")

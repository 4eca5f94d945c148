"""The setting `source` names a source, or the message says what is wrong with it.

A module in the folder of the sources is one, with all that is known of it.
"""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from sequitur.errors import SourceError, SourceSpecError
from sequitur.producer.sources._lines import EventParser
from sequitur.producer.sources._registry import (
    KINDS,
    SourceSettings,
    check_source,
    kind_of,
    make_source,
)
from sequitur.producer.sources.file import FileSource
from sequitur.producer.sources.http import is_loopback
from tests.support.fake_intake import FakeIntake
from tests.support.tree import ROOT

if TYPE_CHECKING:
    import asyncio


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cpu", "cpu"),
        ("stdin", "stdin"),
        ("file:/var/log/app.log", "file"),
        ("file:odd:name", "file"),
        ("dir:in", "dir"),
        ("replay:day.jsonl", "replay"),
        ("http:127.0.0.1:8080", "http"),
        ("http:[::1]:0", "http"),
    ],
)
def test_a_source_is_named(text: str, name: str) -> None:
    assert kind_of(text) is KINDS[name]
    assert SourceSettings(source=text).source == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected cpu, dir:PATH, file:PATH, http:HOST:PORT, replay:PATH or stdin"),
        ("tape:x", "expected cpu, dir:PATH"),
        ("cpu:1", "cpu takes nothing after it"),
        ("file", "expected a path, as in file:PATH"),
        ("dir:", "expected a path, as in dir:PATH"),
        ("file:a\0b", "null byte"),
        ("file:a\udcff", "a\\udcff is not UTF-8"),
        ("dir:a\udcff", "a\\udcff is not UTF-8"),
        ("replay:a\udcff", "a\\udcff is not UTF-8"),
        ("http", "expected a host"),
        ("http:8080", "expected a host"),
        ("http:localhost:", "expected a port"),
        ("http:localhost:70000", "expected a port from 0 to 65535"),
        ("http:localhost:x", "expected a port"),
        ("http://localhost:80", "without slashes"),
        ("http:::1:80", "stands in brackets"),
    ],
)
def test_a_wrong_source_is_refused(text: str, problem: str) -> None:
    """The message names the value and the part that is wrong."""
    with pytest.raises(SourceSpecError) as caught:
        kind_of(text)
    assert problem in str(caught.value)
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, SourceError)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source", "tape"),
        ("key", "host"),
        ("replay_event_time", "header:at"),
        ("speed", -1),
        ("speed", float("inf")),
        ("speed", 1e-9),
        ("speed", 5e-324),
        ("late_share", 1.5),
        ("poll_interval", "0 s"),
        ("on_lost_file", "ignore"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SourceSettings.model_validate({field: value})
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_each_source_can_be_made(kind: str) -> None:
    """Its name, the key of its position in the journal, says what it reads; a path is absolute."""
    rest = {"file": ":a", "dir": ":a", "replay": ":a", "http": ":127.0.0.1:0"}.get(kind, "")
    settings = SourceSettings(source=kind + rest, key="json:host")
    source = make_source(settings, max_event_bytes=100)
    assert source.name == kind + rest.replace(":a", f":{Path.cwd() / 'a'}")
    assert source.statistics().files_lost == 0


@pytest.mark.promise("in-setting-address-folder")
def test_what_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    """Before Kafka is asked for anything: a folder, a recording, an address; a file may come."""
    for kind in ("dir", "replay"):
        with pytest.raises(SourceError, match="is not there"):
            check_source(SourceSettings(source=f"{kind}:{tmp_path / 'missing'}"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SourceError, match=f"cannot listen on {address}"):
            check_source(SourceSettings(source=f"http:{address}"))
    (tmp_path / "recording").touch()
    for source in (
        *("cpu", "stdin", f"dir:{tmp_path}", f"replay:{tmp_path / 'recording'}"),
        *(f"file:{tmp_path / 'missing'}", f"http:{address}", "http:[::1]:0"),
    ):
        check_source(SourceSettings(source=source))


@pytest.mark.promise("in-source-waits")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("file:{}", r"is a folder: expected a file, or dir:"),
        ("file:{}/pipe", "is not a regular file: expected one, or stdin for a pipe"),
        ("file:{}/text/app.log", "text is no folder"),
        ("file:{}/text/a/b", "text is no folder"),
        ("file:/dev/null", "is not a regular file"),
        ("file:{}/loop", "cannot be read: .*symbolic links"),
        ("file:{}/loop/app.log", "cannot be read: .*symbolic links"),
        ("dir:{}/text", "or no folder"),
        ("replay:{}", "or no file"),
        ("replay:{}/pipe", "or no file"),
    ],
)
def test_what_no_wait_would_make_a_source_is_refused(tmp_path: Path, source: str, why: str) -> None:
    """A file may come into a folder that may come, and nowhere else."""
    (tmp_path / "text").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SourceError, match=why):
        check_source(SourceSettings(source=source.format(tmp_path)))
    (tmp_path / "link").symlink_to(tmp_path / "text")
    for name in ("text", "link", "missing", "none/missing"):
        check_source(SourceSettings(source=f"file:{tmp_path / name}"))


@pytest.mark.promise("in-source-waits")
@pytest.mark.parametrize(
    ("source", "lacks", "why"),
    [
        ("file:{}/text", os.R_OK, "text cannot be read: permission denied"),
        ("replay:{}/text", os.R_OK, "text cannot be read: permission denied"),
        ("dir:{}", os.R_OK, "cannot be read: permission denied"),
        ("dir:{}", os.W_OK, r"is not writable, but files are renamed to NAME\.done there"),
        ("dir:{}", os.X_OK, r"is not writable, but files are renamed to NAME\.done there"),
    ],
)
def test_what_this_user_may_not_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, lacks: int, why: str
) -> None:
    """The system's answer is made up: root, as which tests may run, may use anything."""
    (tmp_path / "text").touch()
    monkeypatch.setattr(os, "access", lambda _path, wanted: not wanted & lacks)
    with pytest.raises(SourceError, match=why):
        check_source(SourceSettings(source=source.format(tmp_path)))


@pytest.mark.promise("in-source-waits")
async def test_a_file_that_does_not_come_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After ten seconds, and then once a minute."""
    clock_s = 0.0

    async def pause(stopping: asyncio.Event, seconds: float) -> None:
        nonlocal clock_s
        clock_s += max(seconds, 1.0)
        if clock_s >= 100:
            stopping.set()

    parser = EventParser(None, 100)
    source = FileSource(tmp_path / "app.log", parser, pause=pause, now_s=lambda: clock_s)
    await source.run(FakeIntake(), None)
    assert ["it is not there" in told for told in caplog.messages] == [True, True]


@pytest.mark.promise("in-file-without-lines")
@pytest.mark.parametrize("kind", ["file", "replay"])
def test_a_compressed_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    (tmp_path / "day.jsonl").write_bytes(gzip.compress(b"1\n"))
    with pytest.raises(SourceError, match=r"has no lines: it is compressed .* unpack it"):
        check_source(SourceSettings(source=f"{kind}:{tmp_path / 'day.jsonl'}"))


@pytest.mark.parametrize(
    "settings",
    [
        {"source": "file:a", "key": "json:host"},
        {"source": "replay:a"},
        {"source": "cpu"},
    ],
)
def test_text_has_no_fields(settings: dict[str, Any]) -> None:
    """So what asks for one is refused, and the message says what to give."""
    with pytest.raises(ValidationError, match="expected format json"):
        SourceSettings.model_validate({**settings, "format": "text"})


def test_defaults_are_valid() -> None:
    """A daemon with no settings samples the cpus."""
    assert SourceSettings().source == "cpu"


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("127.0.0.1", True), ("::1", True), ("LocalHost", True), ("0.0.0.0", False), ("web", False)],
)
def test_only_this_machine_reaches_its_loopback(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


_TAPE = """
from pydantic import Field
from sequitur.producer.sources._source import CommonSettings, SourceKind


class TapeSettings(CommonSettings):
    title = "Tape"
    tape_speed: int = Field(default=7, description="How fast (tape)")


def make(settings, parser):
    return settings.source, settings.tape_speed


SOURCE = SourceKind(settings=TapeSettings, make=make, takes="PATH")
"""
_WITH_A_TAPE = """
import importlib, sys
import sequitur.producer.sources as sources
sources.__path__.append(sys.argv[1])
from sequitur.producer.sources import _registry
registry = importlib.reload(_registry)
given = registry.SourceSettings(source="tape:x", tape_speed=3)
print(registry.make_source(given, max_event_bytes=9))
sys.modules.pop("sequitur.producer.daemon.settings", None)
from sequitur.base.settings import panel_of
from sequitur.producer.daemon.settings import ProduceJob
print(panel_of(ProduceJob, "produce", "tape_speed"), registry.NAMES)
"""


def test_a_new_source_is_one_new_file(tmp_path: Path) -> None:
    (tmp_path / "tape.py").write_text(_TAPE)
    told = subprocess.run(
        [sys.executable, "-c", _WITH_A_TAPE, str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    made, described = told.stdout.splitlines()
    assert made == "('tape:x', 3)"
    assert described.startswith("Tape (produce) cpu, ")
    assert described.endswith(" or tape:PATH")

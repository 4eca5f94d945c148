"""The setting `source` names a source, or the message says what is wrong with it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from sequitur.producer.sources import (
    SourceError,
    SourceSettings,
    SourceSpec,
    SourceSpecError,
    check_source,
    make_source,
    parse_source,
)

if TYPE_CHECKING:
    from sequitur.producer.sources._spec import SourceKind


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("cpu", SourceSpec("cpu")),
        ("stdin", SourceSpec("stdin")),
        ("file:/var/log/app.log", SourceSpec("file", path="/var/log/app.log")),
        ("file:odd:name", SourceSpec("file", path="odd:name")),
        ("dir:in", SourceSpec("dir", path="in")),
        ("replay:day.jsonl", SourceSpec("replay", path="day.jsonl")),
        ("http:127.0.0.1:8080", SourceSpec("http", host="127.0.0.1", port=8080)),
        ("http:[::1]:0", SourceSpec("http", host="::1", port=0)),
    ],
)
def test_a_source_is_named(text: str, spec: SourceSpec) -> None:
    assert parse_source(text) == spec


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected cpu, stdin, file:PATH"),
        ("tape:x", "expected cpu, stdin, file:PATH"),
        ("cpu:1", "cpu takes nothing after it"),
        ("file", "expected a path, as in file:PATH"),
        ("dir:", "expected a path, as in dir:PATH"),
        ("file:a\0b", "null byte"),
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
        parse_source(text)
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
        ("late_share", 1.5),
        ("poll_interval", "0 s"),
        ("on_lost_file", "ignore"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SourceSettings.model_validate({field: value})
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


@pytest.mark.parametrize("kind", ["cpu", "stdin", "file", "dir", "http", "replay"])
async def test_each_source_can_be_made(kind: SourceKind) -> None:
    """Its name, the key of its position in the journal, says what it reads; a path is absolute."""
    rest = {"file": ":a", "dir": ":a", "replay": ":a", "http": ":127.0.0.1:0"}.get(kind, "")
    settings = SourceSettings(source=kind + rest, key="json:host")
    source = make_source(settings, max_event_bytes=100)
    assert source.name == kind + rest.replace(":a", f":{Path.cwd() / 'a'}")
    assert source.statistics().files_lost == 0


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

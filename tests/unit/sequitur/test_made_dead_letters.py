"""Dead letters of what bolts made: to be read in the topic, to be given back from a file only."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur._dead_letters import DeadLetter, Selection, request_rows
from sequitur._topic_reader import TopicRecord
from sequitur.consumer.topology import FailReason, TopologyBuilder, bolt
from sequitur.consumer.topology.settling.root import MadeTuple
from sequitur.consumer.topology.step.batch import PendingEvent
from sequitur.errors import CheckpointError, NotADeadLetterError
from sequitur.kafka.record_format import RecordLimit
from sequitur.pipelines.rows.oversized import read_oversized, write_oversized
from sequitur.pipelines.topology.batch import FileBatch, dead_letter
from sequitur.pipelines.topology.files import EVENT_COLUMNS, read_pending
from sequitur.pipelines.topology.replay import write_request
from sequitur.pipelines.topology.step_runs import write_replayed

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import Topology

_PLACE = ("windows", 3)
_LOOP: list[Any] = []
_LOOP.append(_LOOP)


@bolt(fields=("begin", "ids"))
def windows(_: Any) -> None:
    """Never called."""


def _topology() -> Topology:
    builder = TopologyBuilder("made")
    builder.set_spout("events")
    builder.set_bolt("windows", windows).local_grouping("events")
    builder.set_output("out", key="begin", value="ids").local_grouping("windows")
    return builder.build()


def _record(root: Path, values: Any = (60, [1, 2]), limit: int = 1 << 20) -> TopicRecord:
    """What the job writes for a tuple that was given up."""
    event = MadeTuple(*_PLACE, "default", values, None).event(17, 99)
    batch = object.__new__(FileBatch)
    fields = {
        "topology": _topology(),
        "now_ms": 100,
        "root": root,
        "letter_limit": RecordLimit(limit),
    }
    for name, said in fields.items():
        object.__setattr__(batch, name, said)
    detail = "\n".join(["word " * 20] * 60)
    waited = PendingEvent(event, 5, None, FailReason.EXCEPTION.value, detail, "windows > post")
    record = dead_letter(waited, batch)
    return TopicRecord(0, 7, 100, record.key, record.value, tuple(record.headers))


def test_a_letter_is_read_in_its_topic_and_given_back_from_its_file(tmp_path: Path) -> None:
    """Bolt, stream and values are text; what is requested goes to its own task, as it was."""
    letter = DeadLetter.of(_record(tmp_path))
    assert (letter.key, letter.value) == (b"windows/3", b'{"begin":60,"ids":[1,2]}')
    assert (letter.component, letter.stream, letter.path) == (
        *("windows", "default"),
        ("windows", "post"),
    )
    assert letter.as_json()["value"] == '{"begin":60,"ids":[1,2]}'
    shown = letter.whole(tmp_path)
    assert shown.as_json() == letter.as_json()
    request = write_request(tmp_path / "replays", request_rows([shown]))
    (tmp_path / "waiting").mkdir()
    given = write_replayed([request], waiting=(), folder=tmp_path / "waiting", partitions=2)
    assert [(one.events, one.made) for one in given] == [(0, 0), (1, 1)]
    (waits,) = read_pending(given[1].files)
    assert MadeTuple.of(waits.event) == (*_PLACE, "default", (60, [1, 2]), None)
    assert waits.event[:1] + waits.event[3:7] == (b"\0windows/3", 99, "windows/3", 3, 17)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((b"\xff", {1, 2}), b'{"begin":"/w==","ids":[1,2]}'),
        ((60, complex(1, 2)), b'{"begin":60,"ids":"(1+2j)"}'),
        ((_LOOP, 4), b"{'begin': [[...]], 'ids': 4}"),
        ((1, 2, 3), b"[1,2,3]"),
    ],
)
def test_values_are_json_where_that_is_possible(tmp_path: Path, values: Any, said: bytes) -> None:
    """By field, where the topology has the stream still; else as Python shows them."""
    assert _record(tmp_path, values).value == said


def test_what_does_not_fit_its_topic_is_told_without_its_values(tmp_path: Path) -> None:
    record = _record(tmp_path, (60, [random.Random(1).randbytes(5_000).hex()]), limit=4_000)
    letter = DeadLetter.of(record)
    assert (letter.key, letter.value, letter.component) == (b"windows/3", None, "windows")
    assert letter.whole(tmp_path).kept is not None


@pytest.mark.parametrize("component", ["windows/a", "窓" * 40, "w" * 400])
def test_a_bolt_has_any_name(tmp_path: Path, component: str) -> None:
    """Also one that is longer than the name of a file may be."""
    event = MadeTuple(component, 3, "default", (60,), None).event(17, 99)
    row = {**dict(zip(EVENT_COLUMNS, event, strict=True)), "headers": []}
    name = write_oversized(tmp_path, row)
    assert read_oversized(tmp_path, name).place == (f"{component}/3", 3, 17)
    others = {**row, "topic": f"{component}/4"}
    assert write_oversized(tmp_path, others).split("/")[1] != name.split("/")[1]


@pytest.mark.promise("process-somebody-writes-record")
def test_nothing_that_stands_in_the_topic_is_unpickled(tmp_path: Path) -> None:
    """A record without a file is none of ours; one that names another's file is refused."""
    record = _record(tmp_path)
    headers = record.headers[:-1]
    selection = Selection()
    assert list(selection.of([replace(record, headers=headers)])) == []
    assert selection.foreign == 1
    with pytest.raises(NotADeadLetterError, match="no file has what a bolt made"):
        DeadLetter.of(replace(record, headers=headers))
    moved = tuple(
        (name, b"windows/4" if name == "sequitur-source-topic" else said)
        for name, said in record.headers
    )
    forged = DeadLetter.of(replace(record, value=b"cos\nsystem", headers=moved))
    with pytest.raises(CheckpointError, match=r"is of .*windows/4.*and its file .*windows/3"):
        forged.whole(tmp_path)
    said = DeadLetter.of(replace(record, key=b"k", value=b"cos\nsystem")).whole(tmp_path)
    (row,) = request_rows([said]).to_pylist()
    assert (row["key"], row["value"][:1]) == (b"\0windows/3", b"\x80")

"""Dead letters: what a record of the topic says, which are selected, what is replayed of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from sequitur.base.copy_headers import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TIME_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.cli.console import shown
from sequitur.cli.dead_letters import DeadLetter, Selection, request_rows
from sequitur.cli.dlq import request
from sequitur.cli.topic_reader import TopicRecord
from sequitur.consumer.topology import FailReason, Place, TopologyBuilder, bolt
from sequitur.consumer.topology.settling.root import MadeTuple
from sequitur.consumer.topology.step.batch import PendingEvent
from sequitur.errors import CheckpointError, NotADeadLetterError
from sequitur.kafka.record_format import RecordLimit
from sequitur.pipelines.rows.oversized import read_oversized, write_oversized
from sequitur.pipelines.store.storage import LocalStorage
from sequitur.pipelines.topology.batch import FileBatch, dead_letter
from sequitur.pipelines.topology.files import EVENT_COLUMNS, read_pending
from sequitur.pipelines.topology.replays import (
    ReplayedLetters,
    read_request,
    requests,
    write_request,
)
from sequitur.pipelines.topology.step_runs import write_replayed
from tests.support.dead_letters import T0, TRACEBACK, dead_record
from tests.support.values import replace

if TYPE_CHECKING:
    from sequitur.consumer.topology import Topology


def _without(record: TopicRecord, header: str) -> TopicRecord:
    left = tuple(pair for pair in record.headers if pair[0] != header)
    return replace(record, headers=left)


@pytest.mark.promise("process-event-keeps-failing")
def test_all_that_the_job_wrote_is_read() -> None:
    """Why, where and how often it failed, and where the event came from."""
    letter = DeadLetter.of(dead_record(7, source_offset=41, event_time_ms=T0 + 9))
    assert (letter.partition, letter.offset) == (0, 7)
    assert (letter.reason, letter.attempts, letter.topology) == ("exception", 5, "words")
    assert letter.path == ("spout", "parse", "count")
    assert (letter.event_time_ms, letter.failed_at_ms) == (T0 + 9, T0 + 60_000)
    assert letter.source == Place("readings", 2, 41)
    assert letter.detail == TRACEBACK


def test_last_line_of_a_traceback_is_the_error() -> None:
    """That line says what was raised; those before it, where. Without any there is none."""
    letter = DeadLetter.of(dead_record())
    assert letter.error == "ValueError: invalid literal for int() with base 10: 'x'"
    assert DeadLetter.of(dead_record(detail="")).error == ""
    assert DeadLetter.of(_without(dead_record(), DEAD_DETAIL_HEADER)).error == ""


def test_own_headers_are_those_the_event_came_with() -> None:
    """In their order and with their repeats; also one that is called as one of the job's."""
    own = [("trace", "1"), (SOURCE_TOPIC_HEADER, "older"), ("trace", None), ("id", b"\xff")]
    letter = DeadLetter.of(dead_record(own=own))
    assert letter.headers == (
        ("trace", b"1"),
        (SOURCE_TOPIC_HEADER, b"older"),
        ("trace", None),
        ("id", b"\xff"),
    )
    assert letter.source.topic == "readings"


@pytest.mark.parametrize(
    "header",
    [
        DEAD_REASON_HEADER,
        DEAD_ATTEMPTS_HEADER,
        DEAD_TIME_HEADER,
        DEAD_EVENT_TIME_HEADER,
        SOURCE_TOPIC_HEADER,
        SOURCE_PARTITION_HEADER,
        SOURCE_OFFSET_HEADER,
    ],
)
def test_record_without_a_header_that_all_have_is_named(header: str) -> None:
    """Somebody else wrote it: it cannot be replayed, and the message says what it lacks."""
    with pytest.raises(NotADeadLetterError, match=f"record 0:3 is not a dead letter.*{header}"):
        DeadLetter.of(_without(dead_record(3), header))


def test_record_without_headers_lacks_the_reason_first() -> None:
    """That is what tells a dead letter from all else."""
    with pytest.raises(NotADeadLetterError, match="it has no header sequitur-dlq-reason"):
        DeadLetter.of(replace(dead_record(3), headers=()))


def test_number_that_is_none_is_named() -> None:
    record = dead_record()
    record = replace(record, headers=(*record.headers, (DEAD_ATTEMPTS_HEADER, b"many")))
    with pytest.raises(NotADeadLetterError, match=f"{DEAD_ATTEMPTS_HEADER} is 'many'"):
        DeadLetter.of(record)


def test_selection_takes_what_fits_and_counts_what_is_foreign() -> None:
    """Reason and key both have to fit; a record of somebody else stops nothing."""
    records = [
        dead_record(0, reason="timeout", key=b"a"),
        dead_record(1, reason="exception", key=b"a"),
        TopicRecord(0, 2, T0, b"a", b"x", ()),
        dead_record(3, reason="exception", key=b"b"),
        dead_record(4, reason="exception", key=None),
    ]

    def offsets(selection: Selection) -> list[int]:
        return [letter.offset for letter in selection.of(records)]

    everything = Selection()
    assert offsets(everything) == [0, 1, 3, 4]
    assert everything.foreign == 1
    assert offsets(Selection(reason="exception")) == [1, 3, 4]
    assert offsets(Selection(key=b"a")) == [0, 1]
    assert offsets(Selection(reason="exception", key=b"a")) == [1]
    assert offsets(Selection(reason="crash")) == []


def test_event_is_requested_as_it_first_came() -> None:
    """Its own key, value, headers and place; what the job fills in is left open."""
    (row,) = request_rows([DeadLetter.of(dead_record(9, own=[("id", b"1")]))]).to_pylist()
    assert row == {
        "topic": "readings",
        "partition": 2,
        "offset": 0,
        "timestamp_ms": T0 + 5,
        "key": b"k",
        "value": b"x",
        "headers": [{"key": "id", "value": b"1"}],
        "output_partition": None,
        "event_time_ms": T0,
        "reason": None,
    }


def test_event_given_up_twice_is_requested_once() -> None:
    """Its last dead letter counts, wherever it stands among them."""
    letters = [
        DeadLetter.of(dead_record(0, source_offset=1, failed_at_ms=T0 + 1, own=[("id", "1")])),
        DeadLetter.of(dead_record(1, source_offset=1, failed_at_ms=T0 + 3, own=[("id", "3")])),
        DeadLetter.of(dead_record(2, source_offset=1, failed_at_ms=T0 + 2, own=[("id", "2")])),
        DeadLetter.of(dead_record(3, source_offset=2)),
    ]
    rows = request_rows(letters).to_pylist()
    assert [row["offset"] for row in rows] == [1, 2]
    assert rows[0]["headers"] == [{"key": "id", "value": b"3"}]


def test_bytes_that_are_no_text_are_base64_in_json() -> None:
    """Text stays readable, and nothing is lost of the rest."""
    letter = DeadLetter.of(dead_record(key=b"\xff\x00", own=[("id", b"\xfe"), ("none", None)]))
    found = letter.as_json()
    assert found["key"] == {"base64": "/wA="}
    assert found["value"] == "x"
    assert found["headers"] == [["id", {"base64": "/g=="}], ["none", None]]


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    """Control sequences are shown as text, markup is not followed; lines stay lines."""
    assert shown("\x1b[2Ja\nb [red]").plain == "\\x1b[2Ja\nb [red]"
    assert shown("[red]").spans == []


def _large(offset: int, file: str) -> DeadLetter:
    """A dead letter whose event is in a file of the checkpoint."""
    return replace(DeadLetter.of(dead_record(offset, source_offset=offset)), file=file)


def _checkpoint(root: Path) -> tuple[LocalStorage, list[DeadLetter]]:
    """A checkpoint, and dead letters: one with a file, one without, one whose file is gone."""
    event = {"key": b"k", "value": b"large", "topic": "readings", "partition": 2, "offset": 0}
    kept = write_oversized(root, {**event, "event_time_ms": T0, "headers": []})
    letters = [_large(0, kept), DeadLetter.of(dead_record(1, source_offset=1))]
    return LocalStorage(root), [*letters, _large(2, "oversized/readings/2-2-0.parquet")]


def _asked(root: Path) -> list[list[int]]:
    return [read_request(path)["offset"].to_pylist() for path in requests(root / "replays")]


@pytest.mark.promise("process-dlq-replay-unread")
def test_a_letter_that_cannot_be_read_does_not_count_as_replayed(tmp_path: Path) -> None:
    """The others are requested; it is once its file is there again, and they are not once more."""
    storage, letters = _checkpoint(tmp_path)
    for _ in range(2):
        with pytest.raises(
            CheckpointError, match=r"1 dead letters cannot be read.*letter 0:2: .*2-2"
        ):
            request(letters, storage, "id", again=False, all_or_none=False)
    assert _asked(tmp_path) == [[0, 1]]
    letters[2] = replace(letters[2], file=letters[0].file)
    request(letters, storage, "id", again=False, all_or_none=False)
    assert _asked(tmp_path) == [[0, 1], [2]]
    with pytest.raises(typer.Exit):
        request(letters, storage, "id", again=False, all_or_none=False)


def test_a_letter_whose_file_is_gone_and_that_was_replayed_stops_nothing(tmp_path: Path) -> None:
    storage, letters = _checkpoint(tmp_path)
    ReplayedLetters(storage, "id").take({(0, 2)})
    request(letters, storage, "id", again=False, all_or_none=False)
    assert _asked(tmp_path) == [[0, 1]]


@pytest.mark.promise("process-dlq-replay-unread")
def test_of_records_that_were_chosen_all_are_requested_or_none(tmp_path: Path) -> None:
    storage, letters = _checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"dead letter 0:2: .*cannot be read"):
        request(letters, storage, "id", again=False, all_or_none=True)
    assert _asked(tmp_path) == []
    request(letters[:2], storage, "id", again=False, all_or_none=True)
    assert _asked(tmp_path) == [[0, 1]]


class _FullDisk:
    """A disk that takes no request, nor deletes what may be there if so told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self.deletes = True
        write, unlink = Path.write_bytes, Path.unlink

        def writes(path: Path, content: bytes) -> int:
            if self.is_full and path.parent.name == "replays":
                raise OSError(28, "No space left on device")
            return write(path, content)

        def unlinks(path: Path, **how: bool) -> None:
            if not self.deletes and path.suffix == ".parquet":
                raise OSError(5, "Input/output error")
            unlink(path, **how)

        monkeypatch.setattr(Path, "write_bytes", writes)
        monkeypatch.setattr(Path, "unlink", unlinks)


@pytest.mark.promise("process-dlq-replay-unread")
def test_letters_whose_request_cannot_be_written_do_not_count_as_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were replayed before do; no number of a note is given twice."""
    storage, letters = _checkpoint(tmp_path)
    ReplayedLetters(storage, "id").take({(0, 7)})
    disk = _FullDisk(monkeypatch)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left"):
        request(letters[:2], storage, "id", again=False, all_or_none=False)
    assert ReplayedLetters(storage, "id").new({(0, 0), (0, 1), (0, 7)}) == {(0, 0), (0, 1)}
    disk.is_full = False
    request(letters[:2], storage, "id", again=False, all_or_none=False)
    assert _asked(tmp_path) == [[0, 1]]
    assert sorted(storage.names("replayed")) == ["000000", "000001", "000002"]


def test_letters_of_a_request_in_doubt_stay_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may have it: given back, its letters could be replayed twice."""
    storage, letters = _checkpoint(tmp_path)
    _FullDisk(monkeypatch).deletes = False
    with pytest.raises(CheckpointError, match=r"may be written or not: .*Input/output error"):
        request(letters[:2], storage, "id", again=False, all_or_none=False)
    assert ReplayedLetters(storage, "id").new({(0, 0), (0, 1)}) == set()


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
    with pytest.raises(NotADeadLetterError, match="no file has a tuple of a bolt"):
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

"""Replay requests: whole or not there, in order, and only for the job they are meant for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import CheckpointError
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA
from sequitur.pipelines.store.job_identity import CHECKPOINT_FORMAT
from sequitur.pipelines.store.storage import LocalStorage
from sequitur.pipelines.topology.replays import (
    ReplayedLetters,
    each_once,
    read_request,
    replays_folder,
    requests,
    write_request,
)

_JOB: dict[str, Any] = {
    "format": CHECKPOINT_FORMAT,
    "kind": "sequitur-reorder",
    "input_topics": ["a", "b"],
    "input_pattern": None,
    "event_time": "json:at",
    "output_topic": "ordered",
    "output_partitions": 4,
    "mode": "ordered",
    "topology": "words",
}


def _rows(*event_times_ms: int | None, **changes: Any) -> pa.Table:
    row: dict[str, Any] = {
        "topic": "a",
        "partition": 0,
        "timestamp_ms": 5,
        "key": b"k",
        "value": None,
        "headers": [{"key": "id", "value": b"1"}, {"key": "none", "value": None}],
        "output_partition": None,
        "reason": None,
    }
    rows = [
        {**row, "offset": offset, "event_time_ms": time_ms, **changes}
        for offset, time_ms in enumerate(event_times_ms)
    ]
    return pa.Table.from_pylist(rows, RUN_ARROW_SCHEMA)


def _settings(checkpoint: str, **changes: Any) -> ReorderSettings:
    given = {"input_topics": "b, a", "output_topic": "ordered", "event_time": "json:at"}
    return ReorderSettings(**{**given, "checkpoint": checkpoint, **changes})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "format.json").write_text(json.dumps(_JOB))
    return tmp_path


def test_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = _rows(3)
    assert read_request(write_request(tmp_path / "replays", rows)).equals(rows)


def test_rows_are_in_the_order_of_events(tmp_path: Path) -> None:
    """By event time, and where that is the same by place in the source."""
    rows = pa.concat_tables([_rows(9, 3, 9), _rows(3, topic="A"), _rows(3, partition=1)])
    found = read_request(write_request(tmp_path, rows)).to_pylist()
    places = [
        (row["event_time_ms"], row["topic"], row["partition"], row["offset"]) for row in found
    ]
    assert places == sorted(places)
    assert len(places) == 5


def test_requests_are_listed_oldest_first(tmp_path: Path) -> None:
    """Each has a name of its own; what is half written or somebody else's is none."""
    written = [write_request(tmp_path, _rows(number)) for number in range(5)]
    (tmp_path / "_half.tmp").touch()
    (tmp_path / ".hidden.parquet").touch()
    (tmp_path / "notes.txt").touch()
    assert requests(tmp_path) == tuple(written)
    assert [read_request(path)["event_time_ms"][0].as_py() for path in written] == [0, 1, 2, 3, 4]


def test_no_folder_is_no_request(tmp_path: Path) -> None:
    """A job that nobody has asked for anything has no such folder."""
    assert requests(tmp_path / "replays") == ()


@pytest.mark.promise("process-dead-letters-replayed")
def test_request_cut_short_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is seen, and nothing is left, when writing fails half way."""

    def fails(path: Path, _: bytes) -> None:
        path.write_text("PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fails)
    with pytest.raises(CheckpointError, match=r"cannot be written.*No space left"):
        write_request(tmp_path, _rows(1))
    assert list(tmp_path.iterdir()) == []


def test_request_needs_events_with_time_and_place(tmp_path: Path) -> None:
    """Without these nobody could say what is asked for, so nothing is written."""
    with pytest.raises(ValueError, match="needs an event"):
        write_request(tmp_path, _rows())
    with pytest.raises(ValueError, match="without event_time_ms"):
        write_request(tmp_path, _rows(1, None))
    with pytest.raises(ValueError, match="without topic"):
        write_request(tmp_path, _rows(1, topic=None))
    assert requests(tmp_path) == ()


def test_what_is_no_request_is_named(tmp_path: Path) -> None:
    """A file that is no Parquet, and one with other columns."""
    broken = tmp_path / "a.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(CheckpointError, match=r"a\.parquet is not a replay request"):
        read_request(broken)
    pq.write_table(pa.table({"key": [b"a"]}), broken)
    with pytest.raises(CheckpointError, match=r"a\.parquet is not a replay request"):
        read_request(broken)


def test_requests_go_into_the_checkpoint_of_the_job(checkpoint: Path) -> None:
    for location in (str(checkpoint), checkpoint.as_uri(), f"file:{checkpoint}"):
        assert replays_folder(_settings(location)) == checkpoint / "replays"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_topic": "other"}, "job with output_topic = 'ordered', not 'other'"),
        ({"input_topics": "a"}, r"job with input_topics = \['a', 'b'\], not \['a'\]"),
        ({"event_time": "json:t"}, "job with event_time = 'json:at', not 'json:t'"),
        ({"input_topics": (), "input_pattern": "x"}, "job with input_topics"),
    ],
)
def test_checkpoint_of_another_job_is_refused(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    """Else the events of one job would run through another's topology."""
    with pytest.raises(CheckpointError, match=message):
        replays_folder(_settings(str(checkpoint), **changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "other"}', "is not a reorder job's"),
        (json.dumps({**_JOB, "format": 99}), "has format 99"),
        (json.dumps({**_JOB, "topology": None}), "no topology runs there"),
        ("[]", "cannot be read: not a JSON object"),
        ("{", "cannot be read"),
    ],
)
def test_what_is_no_checkpoint_is_refused(checkpoint: Path, text: str, message: str) -> None:
    """Something else's folder, a newer version's, a mere reorder job's, and a damaged one."""
    (checkpoint / "format.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        replays_folder(_settings(str(checkpoint)))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/no/such/folder", "/no/such/folder is not a job's checkpoint"),
        (
            "viewfs://a/job",
            "viewfs://a/job: this command opens only local paths and stores",
        ),
    ],
)
def test_checkpoint_that_cannot_be_reached_is_named(location: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        replays_folder(_settings(location))


@pytest.mark.promise("process-events-place-topic")
def test_an_event_is_given_back_once_and_another_of_its_place_as_well() -> None:
    """What waits already, or is asked for twice, is known by all but the letter's timestamp."""

    def event(value: bytes, timestamp_ms: int, headers: Any = ()) -> tuple[Any, ...]:
        return (b"k", value, headers, 1_000, "a", 0, 7, timestamp_ms)

    waiting = [event(b"waits", 5, [("id", b"1")])]
    requested = [
        event(b"waits", 6, [("id", b"1")]),
        event(b"waits", 6),
        event(b"another", 5),
        event(b"another", 9),
    ]
    assert list(each_once(requested, waiting)) == [requested[1], requested[2]]


@pytest.mark.promise("process-dlq-replay-run")
def test_a_letter_is_taken_once(tmp_path: Path) -> None:
    """Of each partition, whatever stands beside it."""
    letters = ReplayedLetters(LocalStorage(tmp_path), "topic-id")
    assert letters.take({(0, 1), (0, 2), (1, 1)}) == {(0, 1), (0, 2), (1, 1)}
    assert letters.take({(0, 2), (0, 3), (1, 0), (1, 2)}) == {(0, 3), (1, 0), (1, 2)}
    again = ReplayedLetters(LocalStorage(tmp_path), "topic-id")
    assert again.take({(0, 1), (0, 3), (1, 2)}) == set()


def test_a_topic_made_anew_starts_without_any(tmp_path: Path) -> None:
    """Other letters stand in the same places."""
    ReplayedLetters(LocalStorage(tmp_path), "topic-id").take({(0, 1)})
    assert ReplayedLetters(LocalStorage(tmp_path), "another").take({(0, 1)}) == {(0, 1)}


@pytest.mark.promise("process-dlq-replay-run")
def test_of_two_commands_at_once_each_letter_is_one_s(tmp_path: Path) -> None:
    """The second finds its document taken, and looks again."""

    class Beaten(LocalStorage):
        def create(self, name: str, *how: Any, **named: Any) -> bool:
            if not beaten:
                beaten.append(ReplayedLetters(LocalStorage(tmp_path), "id").take({(0, 1), (0, 2)}))
            return super().create(name, *how, **named)

    beaten: list[set[tuple[int, int]]] = []
    assert ReplayedLetters(Beaten(tmp_path), "id").take({(0, 2), (0, 3)}) == {(0, 3)}
    assert beaten == [{(0, 1), (0, 2)}]


def test_a_newer_versions_notes_are_refused_by_name(tmp_path: Path) -> None:
    """Unread they would be taken for none."""
    storage = LocalStorage(tmp_path)
    ReplayedLetters(storage, "id").take({(0, 1)})
    (tmp_path / "replayed" / "000001").write_text('{"format": 2}')
    with pytest.raises(CheckpointError, match=r"replayed/000001 .*format 2, this version reads 1"):
        ReplayedLetters(storage, "id").take({(0, 1)})

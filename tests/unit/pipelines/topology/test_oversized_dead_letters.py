"""Dead letters that are larger than their topic takes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from sequitur.base.copy_headers import DEAD_DETAIL_HEADER
from sequitur.consumer.topology import FailReason
from sequitur.consumer.topology.step.batch import PendingEvent
from sequitur.errors import CheckpointError
from sequitur.kafka.record_format import RecordLimit
from sequitur.pipelines.rows.oversized import read_oversized
from sequitur.pipelines.topology.batch import FileBatch, dead_letter

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology.engine.plan import OutputRecord

_NOISE = random.Random(1).randbytes(20_000)
_TRACEBACK = "".join(random.Random(2).choices("abcdefghijklmnopqrstuvwxyz\n", k=16_000))


def _letter(
    root: Path, value: bytes, limit: int, key: bytes = b"k"
) -> tuple[OutputRecord, dict[str, str]]:
    event = (key, value, [("own", b"1")], 7, "in", 1, 17, 6)
    batch = object.__new__(FileBatch)
    fields = {
        "topology": type("Named", (), {"name": "t"}),
        "now_ms": 9,
        "root": root,
        "letter_limit": RecordLimit(limit),
    }
    for name, said in fields.items():
        object.__setattr__(batch, name, said)
    waiting = PendingEvent(event, 3, None, FailReason.EXCEPTION.value, _TRACEBACK, "spout > bolt")
    record = dead_letter(waiting, batch)
    return record, {name: (said or b"").decode() for name, said in record.headers}


@pytest.mark.promise("process-dead-letter-larger")
def test_dead_letter_has_less_of_its_traceback_before_its_event_goes_aside(tmp_path: Path) -> None:
    record, headers = _letter(tmp_path, _NOISE[:1000], 5000)
    assert record.value == _NOISE[:1000]
    assert _TRACEBACK.endswith(headers[DEAD_DETAIL_HEADER])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("key", "limit"), [(b"k", 5000), (_NOISE, 5000), (_NOISE[:900], 1000)])
def test_event_too_large_is_whole_in_a_file(tmp_path: Path, key: bytes, limit: int) -> None:
    """Key, value, headers and traceback; the record names it, and is taken by its topic."""
    record, headers = _letter(tmp_path, _NOISE, limit, key)
    name = headers.pop("sequitur-oversized-file")
    assert name.startswith("oversized/in/1-17-")
    assert record.value is None
    assert headers["sequitur-dlq-reason"] == "exception"
    assert headers["sequitur-source-offset"] == "17"
    assert "own" not in headers
    whole = read_oversized(tmp_path, name)
    assert whole == (key, _NOISE, (("own", b"1"),), _TRACEBACK, ("in", 1, 17))


def test_file_of_another_place_is_not_read(tmp_path: Path) -> None:
    """A header is what somebody wrote: it leads nowhere but into the folder of these files."""
    for name in ("../secret", "oversized/../secret", "/etc/hostname", "oversized/in/0-0.parquet"):
        with pytest.raises(CheckpointError):
            read_oversized(tmp_path, name)


def test_event_at_the_place_of_another_has_a_file_of_its_own(tmp_path: Path) -> None:
    """A topic that was deleted and recreated gives the same places again."""
    names = []
    for noise in (_NOISE, _NOISE[::-1]):
        _, headers = _letter(tmp_path, noise, 5000)
        names.append(headers["sequitur-oversized-file"])
        assert read_oversized(tmp_path, names[-1]).value == noise
    assert len({*names}) == 2
    assert read_oversized(tmp_path, names[0]).value == _NOISE

"""Lives of `before-house` and of this version go on with each other's journals and checkpoints."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from sequitur.embedded import EmbeddedBroker
from sequitur.producer import KafkaSettings
from tests.support.house import COMMIT, MARK, forget_last_mark, live, unpack_code, unpack_world
from tests.support.output_reading import read_output

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.test_all]

_DAY_MS = 86_400_000
_AGED = {
    # What was left is older with each day: nothing of it goes.
    "log.initial.task.delay.ms": str(_DAY_MS),
    "offsets.retention.minutes": str((1 << 31) - 1),
}


def _check_all_is_out(bootstrap_servers: str, folder: Path, mark: str, step: int) -> None:
    kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
    sent = Counter(
        json.loads(record.value or b"")["number"]
        for record in read_output(kafka, f"bestellungen-{mark}")
    )
    assert sent == Counter(range(31))
    out, keys = Counter[int](), set()
    for topic in (f"geordnet-{mark}", f"geordnet-{mark}.late"):
        newest: dict[bytes | None, int] = {}
        for record in read_output(kafka, topic):
            found = json.loads(record.value or b"")
            out[found["number"]] += 1
            keys.add(record.key)
            if not topic.endswith(".late"):
                assert found["at"] >= newest.get(record.key, 0)
                newest[record.key] = found["at"]
    assert out == Counter(range(31))
    assert keys == {f"schlüssel-{number}".encode() for number in range(3)}
    assert (folder / "checkpoint" / "done" / f"{step:012d}").is_file()


def test_a_journal_and_a_checkpoint_of_before_house_are_gone_on_with(tmp_path: Path) -> None:
    unpack_world(tmp_path)
    life = tmp_path / "life"
    step = forget_last_mark(life)
    with EmbeddedBroker(tmp_path / "broker", options=_AGED, short_lived=True) as broker:
        received = live("last", broker.bootstrap_servers, life)
        _check_all_is_out(broker.bootstrap_servers, life, MARK, step)
    assert received == [2, *range(4, 31)]


def test_before_house_goes_on_with_a_journal_and_a_checkpoint_of_today(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    if not unpack_code(tmp_path / "code"):
        pytest.skip(f"the repository's history does not have {COMMIT}")
    life, mark = tmp_path / "life", uuid4().hex[:8]
    live("first", broker.start(), life, mark=mark)
    step = forget_last_mark(life)
    received = live("last", broker.bootstrap_servers, life, code=tmp_path / "code", mark=mark)
    _check_all_is_out(broker.bootstrap_servers, life, mark, step)
    assert received == [2, *range(4, 31)]

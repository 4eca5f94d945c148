"""docs/compare.md is true: which events bolts get where nothing is to be reordered."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.topology import TopologyBuilder, bolt
from sequitur.testing import ReorderTester
from tests.support.pages import rows_of, section

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOW_MS: Final = 1_795_000_000_000
_ROWS: Final = [row for row in rows_of(section("compare.md", "Storm")) if "sorted" not in row[1]]


@bolt(fields=("second",))
def seconds(event: Any) -> Iterator[int]:
    yield json.loads(event.value)["second"]


def test_the_table_has_three_ways() -> None:
    """Else nothing of it would be shown below."""
    assert len(_ROWS) == 3


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0].replace("`", ""))
def test_bolts_get_events_without_a_delay(row: list[str]) -> None:
    """Each event in a batch of its own: those that the table names go to bolts at once."""
    written, given, late = row
    settings = {"event_time": "json:at", **dict(re.findall(r'`(\w+) = "(.*?)"`', written))}
    builder = TopologyBuilder("at-once")
    builder.set_spout("events")
    builder.set_bolt("seconds", seconds).local_grouping("events")
    builder.set_output("out", topic="out", key=None, value="second").local_grouping("seconds")
    job = ReorderSettings.model_validate(
        {"input_topics": ["in"], "output_topic": "ordered", "checkpoint": "none", **settings}
    )
    passed: list[str] = []
    kept_back: list[str] = []
    with ReorderTester(job, builder.build(), now_ms=_NOW_MS) as tester:
        for second in (5, 30, 10, 20):
            tester.advance(1)
            before = len(tester.records("out"))
            value = json.dumps({"at": _NOW_MS + 1_000 * second, "second": second})
            tester.run([{"key": "a", "value": value}])
            is_out = [int(one.value or b"") for one in tester.records("out")[before:]] == [second]
            (passed if is_out else kept_back).append(str(second))
        assert tester.totals.late == len(kept_back)
    assert (", ".join(passed), ", ".join(kept_back) or "none") == (given, late)

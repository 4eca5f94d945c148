"""What a window or a join emits has the event time of its window, wherever it goes from there."""

from __future__ import annotations

import itertools
from ast import literal_eval
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder import OutputTimestamp
from sequitur.consumer.reorder.timestamps import TimestampRule
from sequitur.consumer.topology import (
    Bolt,
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.engine.plan import OutputRecord
from sequitur.consumer.topology.settling.root import Root
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.rows.selection import OutputSelection
from sequitur.pipelines.topology.output_files import OUTPUT_ORDER, TIMED_SCHEMA, OutputFiles
from sequitur.windows import Count, hopping, join, join_table, session, sliding, tumbling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import BaseBolt, Event, Key, Tuple


def _side(event: Event) -> str:
    return "left" if event.value == b"l" else "right"


@bolt(fields=("key", "seen"))
def seen(given: Tuple) -> Iterator[Any]:
    yield given["key"], [given.source, given.event_time_ms]


class Both(Bolt):
    """Emits once for all tuples of a batch, anchored to each, and acks them at its end."""

    fields = ("key", "seen")

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.held: list[Tuple] = []

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.held.append(tuple)

    def finish_batch(self) -> None:
        if self.held:
            self.collector.emit((b"all", None), self.held)
        for one in self.held:
            self.collector.ack(one)
        self.held.clear()


def run(tested: BaseBolt, events: list[Any], *, far: str = "shuffle_grouping") -> dict[str, Any]:
    """Return the event times of what a bolt emits, seen in three bolts and in the output rows."""
    builder = TopologyBuilder("times")
    builder.set_spout("events")
    builder.set_bolt("tested", tested).fields_grouping("events", "key")
    builder.set_bolt("near", seen).local_grouping("tested")
    getattr(builder.set_bolt("far", seen), far)("near")
    builder.set_bolt("both", Both()).local_grouping("far")
    for name in ("tested", "near", "far", "both"):
        output = builder.set_output(f"out {name}", name, value=None, encode=repr)
        output.local_grouping(name)
    tester = TopologyTester(builder.build())
    for event in events:
        tester.run([event])
    tester.run(watermark_ms=900_000)
    assert len(tester.acked) == len(events)
    found: dict[str, Any] = {
        name: [
            one.root.event[3] if one.own_time_ms is None else one.own_time_ms
            for one in tester.outputs[f"out {name}"]
        ]
        for name in ("tested", "near", "far", "both")
    }
    for name in ("near", "far"):
        values = [
            literal_eval((value or b"").decode()) for _, value in tester.records(f"out {name}")
        ]
        found[f"seen {name}"] = [one["seen"][1] for one in values]
    return found


@pytest.mark.promise("windows-times")
@pytest.mark.parametrize("far", ["shuffle_grouping", "local_grouping"])
@pytest.mark.parametrize(
    ("tested", "wanted"),
    [
        (tumbling("1 s", late="drop", n=Count()), [1_999, 5_999]),
        (tumbling("1 s", late="drop", allow_late="2 s", n=Count()), [1_999, 5_999]),
        (tumbling("4 s", late="drop", early="1 s", n=Count()), [3_999, 3_999, 7_999, 7_999]),
        (hopping("2 s", "1 s", late="drop", n=Count()), [1_999, 2_999, 5_999, 6_999]),
        (session("3 s", late="drop", n=Count()), [4_199, 8_000]),
        (session("3 s", late="drop", early="1 s", n=Count()), [4_199, 4_199, 8_000, 8_000]),
        (sliding("2 s", late="drop", n=Count()), [1_100, 1_200, 5_001]),
    ],
)
def test_of_windows(tested: BaseBolt, wanted: list[int], far: str) -> None:
    events = [("a", "", 1_100), ("a", "", 1_200), ("a", "", 5_001)]
    found = run(tested, events, far=far)
    assert found.pop("both")
    assert all(one == wanted for one in found.values()), found


@pytest.mark.promise("windows-times")
@pytest.mark.parametrize(
    ("tested", "wanted"),
    [
        (join(_side, within="1 s", late="drop"), [1_500]),
        (join(_side, within="1 s", before="1 s", late="drop", kind="outer"), [1_500, 5_000, 9_000]),
        (join_table(_side, late="drop"), [1_000, 9_000]),
    ],
)
def test_of_joins(tested: BaseBolt, wanted: list[int]) -> None:
    events = [("a", "l", 1_000), ("a", "r", 1_500), ("a", "r", 5_000), ("a", "l", 9_000)]
    found = run(tested, events)
    assert found["tested"] == found["near"] == found["far"] == wanted
    assert found["seen near"] == found["seen far"] == wanted


@pytest.mark.promise("windows-times")
def test_a_late_pair_has_the_time_of_the_later_event() -> None:
    tested = join(_side, within="1 s", before="1 s", allow_late="9 s", late="drop")
    assert run(tested, [("a", "l", 1_500), ("a", "r", 1_000)])["seen far"] == [1_500]


class Told(KeyedBolt):
    fields = ("key",)

    def process(self, event: Event, key: Key) -> None:
        key.emit((key.value,), event_time_ms=int(event.value or b""))


@pytest.mark.promise("windows-times")
def test_a_tuple_of_several_has_the_newest_time() -> None:
    events = [("a", "7000", 1), ("a", "30", 50_000)]
    builder = TopologyBuilder("several")
    builder.set_spout("events")
    builder.set_bolt("told", Told()).fields_grouping("events", "key")
    builder.set_bolt("both", Both()).local_grouping("told")
    builder.set_output("out", value="seen").local_grouping("both")
    tester = TopologyTester(builder.build())
    tester.run(events)
    assert [one.own_time_ms for one in tester.outputs["out"]] == [7_000]


def test_a_time_is_a_number_of_ms() -> None:
    builder = TopologyBuilder("wrong")
    builder.set_spout("events")
    builder.set_bolt("wrong", Wrong()).fields_grouping("events", "key")
    tester = TopologyTester(builder.build(), ProcessSettings(max_attempts=1))
    tester.run([("a", "", 1)])
    (dead,) = tester.dead_letters
    assert "event_time_ms=1.5): it is an int in ms" in dead.detail


class Wrong(KeyedBolt):
    fields = ("key",)

    def process(self, _: Event, key: Key) -> None:
        key.emit((key.value,), event_time_ms=1.5)  # type: ignore[arg-type]


@pytest.mark.promise("windows-times")
def test_records_have_their_own_times_in_the_order_of_events(tmp_path: Path) -> None:
    """However steps are cut, the order is the same."""
    (tmp_path / "topic").mkdir()
    files = OutputFiles(tmp_path, {"out": ("topic", 1)}, itertools.count(), TIMED_SCHEMA)
    for time_ms, own_ms in ((50, 9), (40, None), (60, 55)):
        root = Root(time_ms, (b"k", b"v", (), time_ms, "t", 0, time_ms, 5))
        files.write("out", OutputRecord(root, b"k", b"%d" % time_ms, (), own_ms))
    file = files.close()["topic"]
    assert file is not None
    selection = OutputSelection((Part((file,)),), order=OUTPUT_ORDER)
    rule = TimestampRule(OutputTimestamp.EVENT_TIME, now_ms=1_000, floor_ms=1_000)
    (batch,) = selection.batches(0, 1 << 18, rule)
    assert (batch.rows, batch.base_ms, batch.max_ms) == (3, 40, 55)
    with_source = TimestampRule(OutputTimestamp.NOW, now_ms=1_000, floor_ms=1_000)
    (batch,) = selection.batches(0, 1 << 18, with_source)
    records = bytes(batch.records)
    places = [
        records.index(b"sequitur-event-time" + bytes([2 * len(t)]) + t)
        for t in (b"40", b"9", b"55")
    ]
    assert places == sorted(places)

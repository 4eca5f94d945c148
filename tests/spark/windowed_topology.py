"""Windows and a join of each key, whose calls fail now and then: for kill rounds.

Each event comes out as it is. Each second of a key comes out in the topic `WINDOWS_TOPIC`, and odd
events with the even ones before them in the topic `JOINS_TOPIC`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sequitur import TopologyBuilder, bolt
from sequitur.windows import Count, Mean, join, tumbling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur import Event, Tuple

SIZE_MS = 1_000
WITHIN_MS = 500


def number(event: Event) -> int:
    """Return an event's number; fail 1 % of events at their first attempt, and some always."""
    found: int = json.loads(event.value or b"")["n"]
    if found % 100 == 7 and event.attempt == 1:
        raise ValueError("not yet")
    if found % 1000 == 500:
        raise ValueError("never")
    return found


def side(event: Event) -> str:
    """Return an event's side of the join; fail 1 % of events at their first attempt."""
    found = json.loads(event.value or b"")["n"]
    if found % 100 == 31 and event.attempt == 1:
        raise ValueError("not yet")
    return "right" if found % 2 else "left"


@bolt(fields=("key", "value"))
def pass_on(given: Event) -> Iterator[Any]:
    yield given.key, given.value


@bolt(fields=("key", "window"))
def settle(given: Tuple) -> Iterator[Any]:
    """Fail 1 % of windows at their first attempt, in another stage."""
    window = given.as_dict()
    key = window.pop("key")
    if crc32(repr(window).encode()) % 100 == 53 and given.attempt == 1:
        raise ValueError("not here yet")
    yield key, {**window, "event_time_ms": given.event_time_ms}


builder = TopologyBuilder("windowed")
builder.set_spout("events")
builder.set_bolt("pass-on", pass_on).local_grouping("events")
builder.set_output("out").local_grouping("pass-on")
seconds = tumbling("1 s", late="drop", mean=Mean(number), count=Count(number))
builder.set_bolt("seconds", seconds).fields_grouping("events", "key")
builder.set_bolt("settle", settle, 2).fields_grouping("seconds", "key")
windows = os.environ.get("WINDOWS_TOPIC", "windows")
builder.set_output("windows", windows, value="window").local_grouping("settle")
pairs = join(side, within="500 ms", kind="outer", late="drop")
builder.set_bolt("pairs", pairs).fields_grouping("events", "key")


@bolt(fields=("key", "pair"))
def numbered(given: Tuple) -> Iterator[Any]:
    both = [None if one is None else json.loads(one)["n"] for one in given.values[1:3]]
    yield given["key"], [*both, given.event_time_ms]


builder.set_bolt("numbered", numbered).local_grouping("pairs")
joins = os.environ.get("JOINS_TOPIC", "joins")
builder.set_output("joins", joins, value="pair").local_grouping("numbered")
topology = builder.build()

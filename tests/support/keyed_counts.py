"""A keyed bolt with state and timers, whose calls fail as its events say; and what it comes to.

`expected` computes the same from the events alone: no step, no failure and no restart is in it.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sequitur.consumer.topology import KeyedBolt, TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sequitur.consumer.topology import Event, Key, Timer, Topology, Tuple

GAP_MS: Final = 10
MOST_ATTEMPTS: Final = 3
WHERE: Final = ("call", "beside", "later")
"""Where an event fails: in the keyed bolt's call, in a bolt beside it, in one of another stage."""


class Session(msgspec.Struct):
    begin_ms: int
    last_ms: int
    count: int = 0


class Sessions(KeyedBolt):
    """Counts the events of each session of a key, which ends after a gap."""

    fields = ("key", "said", "number", "plan")
    state = Session

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        plan = json.loads(event.value or b"")
        at_ms = event.event_time_ms
        session = key.state or Session(at_ms, at_ms)
        session.last_ms = at_ms
        session.count += 1
        key.state = session
        key.timer("gap", at=at_ms + GAP_MS)
        if plan["n"] % 3 == 0:
            key.timer("at once", at=at_ms - plan["n"] % 2)
        if plan["n"] % 7 == 0:
            key.cancel("mark")
        elif plan["n"] % 2 == 0:
            key.timer("mark", at=at_ms + plan["n"] % 13)
        yield key.value, ["count", session.count], plan["n"], plan
        if plan["where"] == "call" and event.attempt <= plan["fails"]:
            raise ValueError(plan["n"])

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        plan = plan_of(key.value, timer.name, timer.at_ms)
        said, state = _called(timer.name, timer.at_ms, key.state)
        if timer.name == "at once" and timer.at_ms % 2 == 0:
            key.timer("once more", at=timer.at_ms)
        key.state = state
        yield key.value, said, timer.at_ms, plan
        if plan["where"] == "call" and timer.attempt <= plan["fails"]:
            raise ValueError(timer.name)


def _called(name: str, at_ms: int, session: Session | None) -> tuple[list[Any], Session | None]:
    if session is None:
        return [name, at_ms], None
    if name == "gap":
        return ["session", session.begin_ms, session.last_ms, session.count], None
    return [name, at_ms, session.count], Session(
        session.begin_ms, session.last_ms, session.count + 100
    )


def plan_of(key: bytes, name: str, at_ms: int) -> dict[str, Any]:
    """Return how a timer fails."""
    drawn = zlib.crc32(b"%b %b %d" % (key, name.encode(), at_ms))
    fails = (0, 0, 0, 0, 0, 1, 2, MOST_ATTEMPTS)[drawn % 8]
    return {"n": at_ms, "fails": fails, "where": WHERE[drawn // 8 % 3]}


@bolt(fields=("key", "said", "number", "plan"))
def beside(given: Tuple) -> Iterator[Any]:
    if given["plan"]["where"] == "beside" and given.attempt <= given["plan"]["fails"]:
        raise ValueError(given["plan"])
    yield given.values


@bolt(fields=("key", "said"))
def later(given: Tuple) -> Iterator[Any]:
    if given["plan"]["where"] == "later" and given.attempt <= given["plan"]["fails"]:
        raise ValueError(given["plan"])
    yield given["key"], given["said"]


def counting(
    stages: int,
    topic: str | None = None,
    *,
    keyed: KeyedBolt | None = None,
    concurrency: int = 1,
) -> Topology:
    """Return the topology; with two stages the last bolt is in a stage of its own."""
    builder = TopologyBuilder("sessions")
    builder.set_spout("events")
    bolt = keyed or Sessions()
    sessions = builder.set_bolt("sessions", bolt, concurrency=concurrency)
    sessions.fields_grouping("events", "key")
    builder.set_bolt("beside", beside).local_grouping("sessions")
    last = builder.set_bolt("later", later)
    if stages == 1:
        last.local_grouping("beside")
    else:
        last.fields_grouping("beside", "number")
    builder.set_output("out", topic, key="key", value="said").local_grouping("later")
    return builder.build()


Given = tuple[int, bytes, dict[str, Any]]
"""Event time, key and plan of an event."""


def cut(events: Sequence[Given], cuts: Iterable[int]) -> list[list[Given]]:
    """Divide events into steps, between two times: a frontier divides no others."""
    parts: list[list[Given]] = [[]]
    for place, one in enumerate(events):
        if place in cuts and parts[-1] and parts[-1][-1][0] < one[0]:
            parts.append([])
        parts[-1].append(one)
    return parts


def by_key(records: Iterable[tuple[bytes | None, bytes | None]]) -> dict[bytes, list[Any]]:
    """Return the values of records, which are JSON, by their keys."""
    found: dict[bytes, list[Any]] = defaultdict(list)
    for key, value in records:
        found[key or b""].append(json.loads(value or b""))
    return dict(found)


def expected(events: Iterable[Given], reached_ms: int) -> dict[bytes, list[Any]]:
    """Return what is said of each key; `events` are in order, and all up to a time are there."""
    by_key: dict[bytes, list[Given]] = defaultdict(list)
    for event in events:
        by_key[event[1]].append(event)
    return {key: _said(key, several, reached_ms) for key, several in by_key.items()}


class _Plain:
    """A key, computed event after event."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.said: list[Any] = []
        self.session: Session | None = None
        self.timers: dict[str, tuple[int, int, int, int]] = {}
        self.number = 0

    def set(self, name: str, at_ms: int, now: tuple[int, int]) -> None:
        """Set a timer: it stands before the events of its time (0), or after them (2)."""
        place = (at_ms, 0) if at_ms > now[0] else (now[0], 2 if now[1] else 0)
        self.timers[name] = (*place, self.number, at_ms)
        self.number += 1

    def call_before(self, order: tuple[int, int]) -> None:
        while self.timers:
            name, found = min(self.timers.items(), key=lambda one: one[1])
            if found[:2] >= order:
                return
            del self.timers[name]
            time_ms, stands, _, at_ms = found
            if plan_of(self.key, name, at_ms)["fails"] < MOST_ATTEMPTS:
                if name == "at once" and at_ms % 2 == 0:
                    self.set("once more", at_ms, (time_ms, stands))
                said, self.session = _called(name, at_ms, self.session)
                self.said.append(said)

    def take(self, time_ms: int, number: int) -> None:
        session = self.session or Session(time_ms, time_ms)
        self.session = Session(session.begin_ms, time_ms, session.count + 1)
        now = time_ms, 1
        self.set("gap", time_ms + GAP_MS, now)
        if number % 3 == 0:
            self.set("at once", time_ms - number % 2, now)
        if number % 7 == 0:
            self.timers.pop("mark", None)
        elif number % 2 == 0:
            self.set("mark", time_ms + number % 13, now)
        self.said.append(["count", self.session.count])


def _said(key: bytes, events: list[Given], reached_ms: int) -> list[Any]:
    plain = _Plain(key)
    for time_ms, _, plan in events:
        plain.call_before((time_ms, 1))
        if plan["fails"] < MOST_ATTEMPTS:
            plain.take(time_ms, plan["n"])
    plain.call_before((reached_ms, 3))
    return plain.said

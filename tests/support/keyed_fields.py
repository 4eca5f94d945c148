"""Two keyed bolts by fields, one behind the other, whose calls fail as their events say.

The first counts the events of each user in windows, the second adds these windows up under one key.
`expected` computes the same from the events alone: no step, no failure and no restart is in it.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology import KeyedBolt, TopologyBuilder, bolt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from sequitur.consumer.topology import Key, Timer, Topology, Tuple

SIZE_MS: Final = 10
WIDE_MS: Final = 50
LASTS_MS: Final = 20
MOST_ATTEMPTS: Final = 3
WHERE: Final = ("early", "call", "near", "later")
"""Where an event fails: before the first keyed bolt, in its call, behind it, in a later stage."""
_FIELDS: Final = ("key", "said", "number", "plan")


def _fail(where: str, plan: dict[str, Any], attempt: int) -> None:
    if plan["where"] == where and attempt <= plan["fails"]:
        raise ValueError(plan)


@bolt(fields=("user", "plan"))
def users(event: Tuple) -> Iterator[Any]:
    plan = json.loads(event["value"])
    _fail("early", plan, event.attempt)
    for user in plan["users"]:
        yield user, plan


class Windows(KeyedBolt):
    """Counts the events of each window of a key, apart from each other."""

    fields = _FIELDS
    state = dict[str, int]
    size_ms = SIZE_MS

    def process(self, given: Tuple, key: Key) -> Any:
        plan, number = given["plan"], self.weight(given)
        window = str(given.event_time_ms // self.size_ms)
        counts = {**(key.state or {})}
        counts[window] = counts.get(window, 0) + number
        counts["all"] = counts.get("all", 0) + number
        key.state = counts
        key.timer(window, at=(int(window) + 1) * self.size_ms)
        yield key.value, ["seen", plan["n"]], plan["n"], plan
        _fail("call", plan, given.attempt)

    def weight(self, given: Tuple) -> int:
        del given
        return 1

    def on_timer(self, timer: Timer, key: Key) -> Any:
        plan = plan_of(key.value, timer.name, self.size_ms)
        counts = {**key.state}
        yield key.value, [self.size_ms, int(timer.name), counts.pop(timer.name)], plan["n"], plan
        key.state = counts
        _fail("call", plan, timer.attempt)


class Wide(Windows):
    """The same, of what windows have counted."""

    size_ms = WIDE_MS

    def weight(self, given: Tuple) -> int:
        number: int = given["said"][2]
        return number


class AsyncWindows(Windows):
    """The same, with calls side by side."""

    async def process(self, given: Tuple, key: Key) -> AsyncIterator[Any]:
        await asyncio.sleep(given["plan"]["n"] % 3 / 1000)
        for values in super().process(given, key):
            yield values

    async def on_timer(self, timer: Timer, key: Key) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        for values in super().on_timer(timer, key):
            yield values


class AsyncWide(AsyncWindows, Wide):
    """The same for the second bolt."""


class Lasting(KeyedBolt):
    """Keeps the numbers of a user's events, and forgets them in silence."""

    fields = _FIELDS
    state = list[int]
    state_map = dict[int, bool]
    ttl = f"{LASTS_MS} ms"

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        plan = given["plan"]
        key.state = [*(key.state or ()), plan["n"]]
        key.state_map.put(plan["n"], True)
        yield key.value, [], plan["n"], plan
        _fail("call", plan, given.attempt)


def plan_of(key: Any, window: str, size_ms: int) -> dict[str, Any]:
    """Return how the timer of a window fails."""
    drawn = zlib.crc32(f"{key}/{window}/{size_ms}".encode())
    fails = (0, 0, 0, 0, 0, 1, 2, MOST_ATTEMPTS)[drawn % 8]
    return {"n": drawn % 1000, "fails": fails, "where": WHERE[1:][drawn // 8 % 3]}


@bolt(fields=_FIELDS)
def near(given: Tuple) -> Iterator[Any]:
    _fail("near", given["plan"], given.attempt)
    yield given.values


@bolt(fields=_FIELDS)
def later(given: Tuple) -> Iterator[Any]:
    _fail("later", given["plan"], given.attempt)
    yield given.values


@bolt(fields=("all", "said", "plan"))
def closed(given: Tuple) -> Iterator[Any]:
    if given["said"][0] == SIZE_MS:
        # The second bolt's own calls for it are not to fail: its plan has been.
        yield "all", given["said"], {"n": given["number"], "fails": 0, "where": "call"}


def windows(
    parallelism: int | None = None, topic: str | None = None, *, concurrency: int = 1
) -> Topology:
    builder = TopologyBuilder("windows")
    builder.set_spout("events")
    builder.set_bolt("users", users).local_grouping("events")
    first, second = (Windows(), Wide()) if concurrency == 1 else (AsyncWindows(), AsyncWide())
    counts = builder.set_bolt("windows", first, parallelism, concurrency=concurrency)
    counts.fields_grouping("users", "user")
    builder.set_bolt("near", near).local_grouping("windows")
    builder.set_bolt("later", later).fields_grouping("near", "number")
    builder.set_bolt("closed", closed).local_grouping("near")
    wide = builder.set_bolt("wide", second, parallelism, concurrency=concurrency)
    wide.fields_grouping("closed", "all")
    builder.set_bolt("wide-near", near).local_grouping("wide")
    builder.set_bolt("wide-later", later).fields_grouping("wide-near", "number")
    output = builder.set_output("out", topic, key="key", value="said")
    output.local_grouping("later").local_grouping("wide-later")
    return builder.build()


def lasting() -> Topology:
    """The users whose events are kept until they are silent."""
    builder = TopologyBuilder("lasting")
    builder.set_spout("events")
    builder.set_bolt("users", users).local_grouping("events")
    builder.set_bolt("lasting", Lasting(), 2).fields_grouping("users", "user")
    builder.set_bolt("near", near).local_grouping("lasting")
    builder.set_bolt("later", later).fields_grouping("near", "number")
    builder.set_output("out", key="key", value="said").local_grouping("later")
    return builder.build()


Given = tuple[int, bytes, dict[str, Any]]
"""Event time, key and plan of an event."""
Said = Counter[tuple[str, str]]
"""How often what was said of each key."""


def said_of(records: Iterable[tuple[bytes | None, bytes | None]]) -> Said:
    """Count what was said, but for what the second bolt says of what it was given."""
    found = Counter(((key or b"").decode(), (value or b"").decode()) for key, value in records)
    return Counter({one: count for one, count in found.items() if not _is_seen_by_wide(one)})


def _is_seen_by_wide(one: tuple[str, str]) -> bool:
    return one[0] == "all" and one[1].startswith('["seen"')


def expected(
    events: Iterable[Given], reached_ms: int
) -> tuple[Said, dict[tuple[str, str], dict[str, int]]]:
    """Return what is said of each key, and the states of both bolts; all up to a time is there."""
    said: Said = Counter()
    states: dict[tuple[str, str], Counter[str]] = {}
    wide: list[tuple[str, int, int]] = []
    for at_ms, _, plan in events:
        if plan["fails"] < MOST_ATTEMPTS:
            for user in plan["users"]:
                _count(states, "windows", user, at_ms // SIZE_MS, 1)
                said[user, json.dumps(["seen", plan["n"]], separators=(",", ":"))] += 1
    wide += _closed(states, "windows", SIZE_MS, reached_ms, said)
    for _, window, count in wide:
        _count(states, "wide", "all", (window + 1) * SIZE_MS // WIDE_MS, count)
    _closed(states, "wide", WIDE_MS, reached_ms, said)
    return said, {where: {**counts} for where, counts in states.items()}


def lasts(events: Iterable[Given], reached_ms: int) -> dict[str, list[int]]:
    """Return which events of each user are kept, in order, if none is tried again."""
    kept: dict[str, tuple[int, list[int]]] = {}
    for at_ms, _, plan in events:
        if plan["fails"] < MOST_ATTEMPTS:
            for user in plan["users"]:
                last_ms, numbers = kept.get(user, (at_ms, []))
                known = numbers if at_ms < last_ms + LASTS_MS else []
                kept[user] = at_ms, [*known, plan["n"]]
    return {
        user: numbers for user, (at_ms, numbers) in kept.items() if reached_ms < at_ms + LASTS_MS
    }


def _count(
    states: dict[tuple[str, str], Counter[str]], bolt: str, key: str, window: int, count: int
) -> None:
    counts = states.setdefault((bolt, key), Counter())
    counts[str(window)] += count
    counts["all"] += count


def _closed(
    states: dict[tuple[str, str], Counter[str]],
    bolt: str,
    size_ms: int,
    reached_ms: int,
    said: Said,
) -> list[tuple[str, int, int]]:
    """Close the windows that are over; those whose timers are given up stay."""
    found = []
    for (whose, key), counts in states.items():
        if whose != bolt:
            continue
        for window in [int(one) for one in counts if one != "all"]:
            is_dead = plan_of(key, str(window), size_ms)["fails"] >= MOST_ATTEMPTS
            if (window + 1) * size_ms <= reached_ms and not is_dead:
                count = counts.pop(str(window))
                said[key, json.dumps([size_ms, window, count], separators=(",", ":"))] += 1
                found.append((key, window, count))
    return found

"""A keyed bolt with a state, a map and a list that expire, whose calls fail as its events say.

`expected` computes the same from the events alone: no step, no failure and no restart is in it.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology import KeyedBolt
from tests.support.keyed_counts import MOST_ATTEMPTS, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.consumer.topology import Event, Key, Timer
    from tests.support.keyed_counts import Given

TTL_MS: Final = 12
OPERATIONS: Final = ("count", "forget", "put", "delete", "clear", "append", "drop", "timer")


class Kinds(KeyedBolt):
    """Does in a call what the event says, and tells what its key has then."""

    fields = ("key", "said", "number", "plan")
    state = int
    state_map = dict[int, list[int]]
    state_list = list[int]
    ttl = TTL_MS / 1_000

    def process(self, event: Event, key: Key) -> Any:
        plan = json.loads(event.value or b"")
        for name, number in plan["does"]:
            _DO[name](key, number, event.event_time_ms)
        yield key.value, _said(key), plan["n"], plan
        if plan["where"] == "call" and event.attempt <= plan["fails"]:
            raise ValueError(plan["n"])

    def on_timer(self, timer: Timer, key: Key) -> Any:
        plan = plan_of(key.value, timer.name, timer.at_ms)
        if timer.at_ms % 2:
            key.state_map.put(-1, [timer.at_ms])
        yield key.value, [timer.name, *_said(key)], timer.at_ms, plan
        if plan["where"] == "call" and timer.attempt <= plan["fails"]:
            raise ValueError(timer.name)


class AsyncKinds(Kinds):
    """Does the same, and waits in the middle of it."""

    async def process(self, event: Event, key: Key) -> list[Any]:
        await asyncio.sleep((event.event_time_ms % 3) / 1_000)
        found = list(super().process(event, key))
        await asyncio.sleep(0)
        return found

    async def on_timer(self, timer: Timer, key: Key) -> list[Any]:
        await asyncio.sleep((timer.at_ms % 3) / 1_000)
        return list(super().on_timer(timer, key))


def _said(key: Key) -> list[Any]:
    among = [list(one) for one in key.state_map.range(-1, 3)]
    assert among == [list(one) for one in key.state_map.range() if one[0] < 3]
    assert len(key.state_list) == len(list(key.state_list))
    return [key.state, list(key.state_map.range()), key.state_map.get(2), list(key.state_list)]


def _put(key: Key, name: int, at_ms: int) -> None:
    key.state_map.put(name, [*key.state_map.get(name, []), at_ms])


_DO: Final[dict[str, Callable[[Key, int, int], Any]]] = {
    "count": lambda key, number, _: setattr(key, "state", (key.state or 0) + number),
    "forget": lambda key, *_: setattr(key, "state", None),
    "put": _put,
    "delete": lambda key, name, _: key.state_map.delete(name),
    "clear": lambda key, number, _: (key.state_map if number % 2 else key.state_list).clear(),
    "append": lambda key, number, _: key.state_list.append(number),
    "drop": lambda key, number, _: key.state_list.drop(number),
    "timer": lambda key, number, at_ms: key.timer(f"t{number % 2}", at=at_ms + 1 + 4 * number),
}


def expected(events: Iterable[Given], reached_ms: int) -> dict[bytes, list[Any]]:
    """Return what is said of each key; `events` are in order, and all up to a time are there."""
    plain: dict[bytes, _Plain] = defaultdict(_Plain)
    for at_ms, key, plan in events:
        one = plain[key]
        one.reach(key, at_ms)
        if plan["fails"] < MOST_ATTEMPTS:
            for name, number in plan["does"]:
                one.do(name, number, at_ms)
            one.tell(at_ms)
    for key, one in plain.items():
        one.reach(key, reached_ms)
    return {key: json.loads(json.dumps(one.told)) for key, one in plain.items() if one.told}


class _Plain:
    """A key, computed event after event."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.timers: dict[str, tuple[int, int]] = {}
        self.set = 0
        self.forget()

    def forget(self) -> None:
        self.state: int | None = None
        self.map: dict[int, list[int]] = {}
        self.list: list[int] = []
        self.touched_ms: int | None = None

    def reach(self, key: bytes, reached_ms: int) -> None:
        """Call what is due: the end of its time to live before the timers of the same time."""
        while True:
            due = [(at_ms, 1, number, name) for name, (at_ms, number) in self.timers.items()]
            if self.touched_ms is not None:
                due.append((self.touched_ms + TTL_MS, 0, 0, ""))
            if not due or min(due)[0] > reached_ms:
                return
            at_ms, is_timer, _, name = min(due)
            if not is_timer:
                self.forget()
                continue
            del self.timers[name]
            if plan_of(key, name, at_ms)["fails"] < MOST_ATTEMPTS:
                if at_ms % 2:
                    self.map[-1] = [at_ms]
                self.tell(at_ms, name)

    def do(self, name: str, number: int, at_ms: int) -> None:
        match name:
            case "count":
                self.state = (self.state or 0) + number
            case "forget":
                self.state = None
            case "put":
                self.map[number] = [*self.map.get(number, []), at_ms]
            case "delete":
                self.map.pop(number, None)
            case "clear":
                (self.map if number % 2 else self.list).clear()
            case "append":
                self.list.append(number)
            case "drop":
                del self.list[:number]
            case "timer":
                self.timers[f"t{number % 2}"] = at_ms + 1 + 4 * number, self.set
                self.set += 1

    def tell(self, at_ms: int, *more: str) -> None:
        said = [self.state, sorted(self.map.items()), self.map.get(2), self.list]
        self.told.append([*more, *json.loads(json.dumps(said))])
        is_there = self.state is not None or self.map or self.list
        self.touched_ms = max(at_ms, self.touched_ms or at_ms) if is_there else None

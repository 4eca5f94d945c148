"""Map and list of a key, its time to live, and what an older version has stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sequitur.consumer.topology import KeyedBolt, ProcessSettings, TopologyBuilder, TopologyTester
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.topology import Event, Key, Timer, Topology

_ONCE = ProcessSettings(max_attempts=1)


class Item(msgspec.Struct):
    number: int
    texts: list[str] = []


class Keeps(KeyedBolt):
    """Does in a call what the event says."""

    fields = ("key", "said")
    state_map = dict[str, Item]
    state_list = list[Item]
    max_bytes = 1_000

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        yield key.value, _CALLS[(event.value or b"").decode()](key)


_CALLS: dict[str, Callable[[Key], Any]] = {}


def _call(function: Callable[[Key], Any]) -> Callable[[Key], Any]:
    _CALLS[function.__name__] = function
    return function


@_call
def put(key: Key) -> int:
    key.state_map.put("a", Item(1))
    key.state_list.append(Item(2))
    return 1


@_call
def changes_in_map(key: Key) -> None:
    key.state_map.get("a").texts.append("more")


@_call
def changes_in_list(key: Key) -> None:
    next(iter(key.state_list)).texts.append("more")


@_call
def puts_again(key: Key) -> Any:
    item = key.state_map.get("a")
    item.texts.append("more")
    key.state_map.put("a", item)
    return key.state_map.get("a").texts


@_call
def wrong_name(key: Key) -> None:
    key.state_map.get(1)


@_call
def wrong_value(key: Key) -> None:
    key.state_list.append("text")


@_call
def half_a_pair(key: Key) -> None:
    key.state_map.put("\ud800", Item(1))


@_call
def too_many(key: Key) -> None:
    for number in range(1_000):
        key.state_map.put(str(number), Item(number))


@_call
def replaced(key: Key) -> int:
    for number in range(1_000):
        key.state_map.put("b", Item(number))
        key.state_map.delete("b")
        key.state_list.append(Item(number))
        key.state_list.drop()
    return len(key.state_list)


@_call
def of_another_call(key: Key) -> None:
    _KEPT.append(key.state_map)
    _KEPT[0].put("a", Item(1))


_KEPT: list[Any] = []


def _topology(bolt: KeyedBolt, **more: Any) -> Topology:
    builder = TopologyBuilder("keeps")
    builder.set_spout("events")
    builder.set_bolt("keeps", bolt, **more).fields_grouping("events", "key")
    builder.set_output("out", key="key", value="said").local_grouping("keeps")
    return builder.build()


def _said(tester: TopologyTester) -> list[Any]:
    return [json.loads(value or b"") for _, value in tester.records("out")]


@pytest.mark.promise("keyed-bounds", "keyed-in-place")
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("changes_in_map", "a value in the map of key b'k' in place"),
        ("changes_in_list", "a value in the list of key b'k' in place"),
        ("wrong_name", "1 cannot be a name in the map: it is not of type str"),
        ("half_a_pair", "cannot be a name in the map: 'utf-8' codec can't encode"),
        ("wrong_value", "'text' is not a <class"),
        ("too_many", "bytes, more than 1000: keep less of it"),
    ],
)
def test_what_no_map_or_list_keeps_fails_its_event(what: str, why: str) -> None:
    tester = TopologyTester(_topology(Keeps()), _ONCE)
    tester.run([("k", "put", 1), ("k", what, 2), ("k", "replaced", 3)])
    tester.retry_all()
    (letter,) = tester.dead_letters
    assert why in letter.detail
    assert _said(tester) == [1, 1]


def test_what_is_put_again_counts() -> None:
    tester = TopologyTester(_topology(Keeps()), _ONCE)
    tester.run([("k", "put", 1), ("k", "puts_again", 2), ("k", "puts_again", 3)])
    assert _said(tester) == [1, ["more"], ["more", "more"]]


def test_a_map_of_a_call_that_is_over_keeps_nothing() -> None:
    tester = TopologyTester(_topology(Keeps()), _ONCE)
    tester.run([("k", "of_another_call", 1), ("k", "of_another_call", 2)])
    assert [one.event.event_time_ms for one in tester.dead_letters] == [2]
    assert "of a call that is over" in tester.dead_letters[0].detail


class NoMap(KeyedBolt):
    fields = ("key", "said")

    def process(self, event: Event, key: Key) -> None:
        key.state_map if event.value == b"map" else key.state_list  # noqa: B018 - they raise


def test_a_bolt_without_a_map_or_list_has_none() -> None:
    tester = TopologyTester(_topology(NoMap()), _ONCE)
    tester.run([("k", "map"), ("k", "list")])
    tester.retry_all()
    said = [one.detail for one in tester.dead_letters]
    assert ["say `state_map` in the bolt" in said[0], "say `state_list`" in said[1]] == [True] * 2


class Short(KeyedBolt):
    """Says what is kept, and keeps the time of each event."""

    fields = ("key", "said")
    state = int
    state_list = list[int]
    ttl = "10 ms"

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        yield key.value, [key.state, list(key.state_list)]
        key.state = event.event_time_ms
        key.state_list.append(event.event_time_ms)
        if event.value:
            key.timer("later", at=event.event_time_ms + int(event.value))

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        yield key.value, [timer.name, key.state]


@pytest.mark.promise("keyed-ttl")
def test_state_goes_once_nothing_has_touched_its_key_for_so_long() -> None:
    """At that time it is gone for timers and events. A timer touches its key, too."""
    tester = TopologyTester(_topology(Short()), _ONCE)
    tester.run([("k", "", 0), ("k", "", 9), ("k", "", 19), ("k", "9", 40), ("k", "10", 58)])
    tester.run([("k", "", 67), ("k", "10", 77)])
    tester.run(watermark_ms=100)
    assert _said(tester) == [
        [None, []],
        [0, [0]],
        [None, []],
        [None, []],
        ["later", 40],
        [40, [40]],
        [58, [40, 58]],
        ["later", 67],
        [67, [40, 58, 67]],
        ["later", None],
    ]


class NoEvents(KeyedBolt):
    fields = ("key", "said")

    def process(self, event: Event, key: Key) -> None:
        """Do nothing."""


@pytest.mark.promise("keyed-bounds")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"state_map": dict}, r"its state_map <class 'dict'> is not a type: say dict\[NAME, VALUE"),
        ({"state_map": dict[float, int]}, "where NAME is str, int or bytes"),
        ({"state_map": dict[str, list[int] | set[int]]}, "is not a type: Type unions may not"),
        ({"state_list": set[int]}, r"its state_list .* is not a type: say list\[VALUE\]"),
        ({"ttl": "soon"}, "ttl = 'soon'"),
        ({"ttl": 0}, "ttl = 0: expected 1 ms or more"),
        ({"max_bytes": 0}, "max_bytes = 0: expected 1 to 1073741824"),
        ({"version": 128}, "version = 128: expected 1 to 127"),
    ],
)
def test_what_a_bolt_cannot_keep_is_refused(said: dict[str, Any], why: str) -> None:
    bolt = type("Says", (NoEvents,), said)()
    with pytest.raises(TopologyBuildError, match=f"keyed bolt 'keeps': .*{why}"):
        _topology(bolt)


def test_two_bolts_keep_their_state_apart() -> None:
    builder = TopologyBuilder("two")
    builder.set_spout("events")
    builder.set_bolt("one", NoEvents()).fields_grouping("events", "key")
    builder.set_bolt("two", NoEvents(), uid="one").fields_grouping("events", "key")
    with pytest.raises(TopologyBuildError, match="'two': its uid 'one' is that of 'one', too"):
        builder.build()


def test_only_keyed_bolts_have_a_uid_and_none_is_that_of_maps() -> None:
    builder = TopologyBuilder("uids")
    with pytest.raises(TopologyBuildError, match="uid = 'x': it is not a keyed bolt"):
        builder.set_bolt("plain", len, uid="x")
    with pytest.raises(TopologyBuildError, match="cannot be kept as 'x/entries'"):
        _topology(NoEvents(), uid="x/entries")

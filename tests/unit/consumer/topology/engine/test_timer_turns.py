"""Timers that wait: for events, for other timers, and for memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.engine import keyed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event, Key, Timer, Tuple

_USERS = [f"user{number}" for number in range(10)]
_FAILS_ONCE: set[tuple[str, str]] = set()
"""Where calls fail at the first attempt, and for which users."""


@pytest.fixture
def fails_once() -> Iterator[set[tuple[str, str]]]:
    yield _FAILS_ONCE
    _FAILS_ONCE.clear()


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave room for the keys of four timers in a step, which is cut where there are more."""
    monkeypatch.setattr(keyed, "_MOST_TIMERS_BYTES", 3 * keyed._KEY_BYTES)
    cuts: set[bool] = set()
    take_in = keyed.StepKeys._take_in

    def take_in_and_look(keys: keyed.StepKeys, *arguments: Any) -> None:
        take_in(keys, *arguments)
        cuts.add(keys.is_cut)

    monkeypatch.setattr(keyed.StepKeys, "_take_in", take_in_and_look)
    yield
    assert True in cuts, "no step was cut"


def _may_fail(where: str, user: str, attempt: int) -> None:
    if (where, user) in _FAILS_ONCE and attempt == 1:
        raise ValueError(f"not yet: {user} in {where}")


@bolt(fields=("user", "said", "all"))
def read(event: Event) -> Iterator[Any]:
    assert event.key is not None
    user = event.key.decode()
    _may_fail("read", user, event.attempt)
    yield user, "seen", "all"


class Over(KeyedBolt):
    """Tells of each user when he is over, beside what it is told."""

    fields = ("user", "said", "all")

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        if given.event_time_ms < self._at_ms:
            key.timer("over", at=self._at_ms)
        if given.source != "events":
            yield given.values

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        del timer
        yield key.value if isinstance(key.value, str) else key.value.decode(), "over", "all"


class PerTime(KeyedBolt):
    """Counts what comes at each event time, apart from each other."""

    fields = ("user", "said")
    state = dict[int, int]

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        at_ms = given.event_time_ms
        counts = {**(key.state or {})}
        counts[at_ms] = counts.get(at_ms, 0) + 1
        key.state = counts
        key.timer(str(at_ms), at=at_ms)
        yield given["user"], "seen"
        _may_fail("count", given["user"], given.attempt)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        yield key.value, f"{timer.name}: {key.state[int(timer.name)]}"


@bolt(fields=("user", "said"))
def later(given: Tuple) -> Iterator[Any]:
    _may_fail(f"later, {given['said']}", given["user"], given.attempt)
    if given["said"] != "seen":
        yield given["user"], given["said"]


def _tester(*bolts: KeyedBolt, reads: str = "read", by: str = "user") -> TopologyTester:
    """Return a tester of keyed bolts one behind the other, the last one by the field `by`."""
    builder = TopologyBuilder("turns")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    for number, one in enumerate(bolts, 1):
        tasks = None if reads == "events" else 2
        field = by if number == len(bolts) else "user"
        builder.set_bolt(f"keyed{number}", one, tasks).fields_grouping(reads, field)
        reads = f"keyed{number}"
    builder.set_bolt("later", later, 3).fields_grouping(reads, "said")
    builder.set_output("out", key="user", value="said").local_grouping("later")
    return TopologyTester(builder.build(), _PATIENT)


_PATIENT = ProcessSettings.model_validate(
    {"retry_delay": "10 min", "retry_maximum": "10 min", "retry_jitter": 0}
)


def _beside(*bolts: tuple[str, KeyedBolt]) -> TopologyTester:
    """Return a tester of keyed bolts that read the same; `other` is put out."""
    builder = TopologyBuilder("beside")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    for name, one in bolts:
        builder.set_bolt(name, one, 1).fields_grouping("read", "user")
    builder.set_output("out", key="user", value="said").local_grouping("other")
    return TopologyTester(builder.build(), _PATIENT)


def _said(tester: TopologyTester) -> list[Any]:
    """Let all timers be called, and wait for no more than some retries: return what is put out."""
    for _ in range(40):
        tester.run(watermark_ms=5_000)
        if tester.next_retry_s is None:
            return sorted(tester.records("out"))
        tester.advance(max(0, tester.next_retry_s - tester.now_s))
    raise AssertionError(f"{len(tester.failed)} failed, and {len(tester.held)} are held for ever")


_ALL_OVER = [(user.encode(), b"over") for user in _USERS]


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("reads", "by"), [("events", "key"), ("read", "user")])
def test_timers_that_are_tried_again_leave_room_for_others(
    reads: str, by: str, fails_once: set[tuple[str, str]]
) -> None:
    fails_once.update(("later, over", user) for user in _USERS)
    tester = _tester(Over(1_000), reads=reads, by=by)
    tester.run([(user, "", 100) for user in _USERS])
    assert _said(tester) == _ALL_OVER


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
def test_timers_that_wait_for_those_of_a_later_bolt_leave_room_for_others() -> None:
    tester = _tester(Over(1_000), Over(500))
    tester.run([(user, "", 100) for user in _USERS])
    assert _said(tester) == sorted(2 * _ALL_OVER)


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
def test_later_events_do_not_wait_for_timers_that_do(fails_once: set[tuple[str, str]]) -> None:
    fails_once.add(("read", "fails"))
    tester = _tester(Over(1_000))
    tester.run([(user, "", 100) for user in _USERS])
    tester.run([("fails", "", 900), ("other", "", 2_000)])
    assert len(tester.failed) == 1, "or no timer waits for it"
    assert (tester.records("out"), tester.held) == ([], [])
    assert _said(tester) == sorted([(b"fails", b"over"), *_ALL_OVER])


@pytest.mark.promise("keyed-by-field")
@pytest.mark.parametrize("where", ["read", "count", "later, seen"])
@pytest.mark.parametrize("user", _USERS[:3])
def test_a_timer_for_now_waits_for_all_events_of_its_time(
    where: str, user: str, fails_once: set[tuple[str, str]]
) -> None:
    fails_once.add((where, user))
    tester = _tester(PerTime(), by="all")
    tester.run([(user, "", 100 if number < 3 else 200) for number, user in enumerate(_USERS)])
    assert len(tester.failed) == 1
    assert _said(tester) == [(b"all", b"100: 3"), (b"all", b"200: 7")]


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
def test_timers_for_now_leave_room_for_the_events_that_they_wait_for(
    fails_once: set[tuple[str, str]],
) -> None:
    """Also for timers of that time that are tried again, and come before these events."""
    fails_once.update([("read", "fails"), ("later, over", _USERS[0])])
    tester = _tester(_OverNow(100))
    tester.run([*((user, "", 100) for user in _USERS), ("fails", "", 100)])
    assert len(tester.failed) == 1
    assert _said(tester) == sorted([*_ALL_OVER, (b"fails", b"over")])


@pytest.mark.promise("keyed-by-field")
@pytest.mark.parametrize("waits_for", ["memory", "a retry"])
def test_a_timer_for_now_waits_for_timers_of_its_time_of_an_earlier_bolt(
    waits_for: str, request: pytest.FixtureRequest, fails_once: set[tuple[str, str]]
) -> None:
    if waits_for == "memory":
        request.getfixturevalue("little_memory")
    else:
        fails_once.add(("count", _USERS[3]))
    tester = _tester(_OnlyOver(1_000), PerTime(), by="all")
    tester.run([(user, "", 100) for user in _USERS])
    assert _said(tester) == [(b"all", b"1000: 10")]


class _OnlyOver(Over):
    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        del given
        key.timer("over", at=self._at_ms)
        yield from ()


class _OverNow(Over):
    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        del given
        key.timer("over", at=0)
        yield from ()


class Two(KeyedBolt):
    """Keeps the names of its timers in the order of their calls."""

    fields = ("user", "said")
    state = list[str]

    def process(self, given: Tuple, key: Key) -> None:
        key.timer(str(given.event_time_ms), at=1_000)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        key.state = [*(key.state or []), timer.name]
        if len(key.state) == 2:
            yield "all", " ".join(key.state)


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("reads", "by"), [("events", "key"), ("read", "user")])
def test_timers_of_a_key_at_one_time_keep_their_order(reads: str, by: str) -> None:
    """The step in which the second ones are set has no room for the first ones, by other keys."""
    tester = _tester(Two(), reads=reads, by=by)
    tester.run([(user, "", 100) for user in [*"abcdefghijklmnop", *_USERS]])
    tester.run([(user, "", 200) for user in _USERS], watermark_ms=5_000)
    assert _said(tester) == [(b"all", b"100 200")] * len(_USERS)


class _Lags(KeyedBolt):
    """Passes on what it is given. By what it says its timers may emit what is a second older."""

    fields = ("user", "said", "all")
    lag_ms = 1_000

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        del key
        yield given.values


class _Ahead(_Lags):
    """Passes on what comes late as if it came a second later."""

    lag_ms = 0

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        at_ms = given.event_time_ms
        key.emit(given.values, event_time_ms=at_ms + 1_000 if at_ms > 1_000 else at_ms)
        yield from ()


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("first", [_Lags(), _Ahead()])
def test_a_step_that_is_cut_between_an_event_and_what_waits_for_it_goes_on(
    first: KeyedBolt,
) -> None:
    """There is no room for the timers that are due before what the event gives the second bolt."""
    tester = _tester(first, Over(1_500))
    tester.run([(user, "", 100) for user in _USERS])
    tester.run([("late", "", 1_400 if first.lag_ms == 0 else 2_000), ("last", "", 6_000)])
    assert [event.key for event in tester.held] == [b"late", b"last"]
    said = [one for one in _said(tester) if one[0] != b"late"]
    assert said == _ALL_OVER


@pytest.mark.promise("keyed-timers")
def test_bolts_of_a_key_go_on_where_a_step_has_room_for_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed, "_MOST_TIMERS_BYTES", 0)
    builder = TopologyBuilder("one")
    builder.set_spout("events")
    for name in ("two", "one"):
        builder.set_bolt(name, Over(1_000)).fields_grouping("events", "key")
    builder.set_output("out", key="user", value="said").local_grouping("one").local_grouping("two")
    tester = TopologyTester(builder.build())
    tester.run([(user, "", 100) for user in _USERS])
    assert _said(tester) == sorted(2 * _ALL_OVER)


class _OverOnce(Over):
    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        user = key.value if isinstance(key.value, str) else key.value.decode()
        _may_fail("timer", user, timer.attempt)
        yield from super().on_timer(timer, key)


class _OverOnceNow(_OverNow, _OverOnce):
    """Its timers are due as soon as they are set."""


@pytest.mark.promise("keyed-timers")
def test_a_waiting_timer_holds_no_timers_of_earlier_bolts(fails_once: set[tuple[str, str]]) -> None:
    fails_once.add(("timer", _USERS[0]))
    tester = _tester(Over(1_000), _OverOnce(500))
    tester.run([(user, "", 100) for user in _USERS])
    tester.run(watermark_ms=700)
    assert [event.event_time_ms for event in tester.failed] == [500]
    tester.run(watermark_ms=1_500)
    assert sorted(tester.records("out")) == sorted([*_ALL_OVER, *_ALL_OVER[1:]])
    assert _said(tester) == sorted(2 * _ALL_OVER)


@pytest.mark.promise("keyed-timers")
def test_a_waiting_timer_for_now_holds_none_of_its_time(fails_once: set[tuple[str, str]]) -> None:
    fails_once.add(("timer", _USERS[0]))
    tester = _tester(_OverOnceNow(0))
    tester.run([(user, "", 100) for user in _USERS[:2]])
    assert [event.event_time_ms for event in tester.failed] == [100]
    tester.run([(_USERS[2], "", 100)])
    assert sorted(tester.records("out")) == _ALL_OVER[1:3]
    assert _said(tester) == _ALL_OVER[:3]


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("before", [[_Lags()], []])
def test_a_waiting_timer_holds_none_of_its_time_that_had_no_room(
    before: list[KeyedBolt], fails_once: set[tuple[str, str]]
) -> None:
    """Those of its time are called in the next steps, which begin at once."""
    fails_once.update(("timer", user) for user in _USERS[:2])
    tester = _tester(*before, _OverOnce(1_000))
    tester.run([(user, "", 100) for user in _USERS])
    tester.run(watermark_ms=5_000)
    for _ in range(6):
        if tester.next_retry_s == tester.now_s:
            tester.run()
    assert (tester.next_retry_s, tester.now_s) == (600.0, 0.0)
    assert [event.event_time_ms for event in tester.failed] == [1_000] * 2
    assert sorted(tester.records("out")) == _ALL_OVER[2:]
    assert _said(tester) == _ALL_OVER


@pytest.mark.promise("keyed-timers")
@pytest.mark.parametrize("names", [("fails", "other"), ("other", "fails")])
def test_a_waiting_timer_holds_none_of_a_bolt_beside_its_own(
    names: tuple[str, str], fails_once: set[tuple[str, str]]
) -> None:
    """Whichever of the two was set first."""
    fails_once.add(("timer", "fails"))
    bolts = {"fails": _OverOnce(500), "other": Over(1_000)}
    tester = _beside(*((name, bolts[name]) for name in names))
    tester.run([("fails", "", 100), *((user, "", 700) for user in _USERS)])
    tester.run(watermark_ms=5_000)
    assert [event.key for event in tester.failed] == [b"fails"]
    over = [one for one in tester.records("out") if one[1] == b"over"]
    assert sorted(over) == [(b"fails", b"over"), *_ALL_OVER]


class _LagsAndKeeps(_Lags):
    """Also has a timer, which comes to nothing."""

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        if given["user"] == "keeps":
            key.timer("over", at=2_500)
        yield given.values

    def on_timer(self, timer: Timer, key: Key) -> None:
        """Emit nothing."""


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
def test_a_step_that_is_cut_goes_on_where_a_bolt_before_has_timers_of_held_keys() -> None:
    tester = _tester(_LagsAndKeeps(), Over(1_800))
    tester.run([(user, "", 100) for user in _USERS])
    tester.run([("keeps", "", 1_000), ("keeps", "", 2_000), ("last", "", 9_000)])
    assert tester.held
    assert [one for one in _said(tester) if one[0] != b"keeps"] == _ALL_OVER


class _OfOne(Over):
    """Has a timer of one user. What its timers emit may be a second older, if it says so."""

    def __init__(self, user: str, at_ms: int, lag_ms: int = 0) -> None:
        super().__init__(at_ms)
        self._of_user = user
        self.lag_ms = lag_ms

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        if given["user"] == self._of_user:
            key.timer("over", at=self._at_ms)
        yield given.values


@pytest.mark.promise("keyed-timers")
def test_a_timer_waits_for_those_of_another_bolt_by_the_lag_between_the_two(
    fails_once: set[tuple[str, str]],
) -> None:
    """A failed event holds timers of the second bolt, but none of the third one."""
    fails_once.add(("read", "fails"))
    bolts = _OfOne("", 0, 1_000), _OfOne("user1", 4_500, 1_000), _OfOne("user2", 2_800)
    tester = _tester(*bolts)
    tester.run([("user1", "", 100), ("user2", "", 100)])
    tester.run([("fails", "", 5_000), ("last", "", 20_000)])
    steps = 0
    while tester.next_retry_s == tester.now_s and steps < 5:
        steps += 1
        tester.run()
    assert tester.next_retry_s == 600.0
    assert tester.records("out") == [(b"user2", b"over")]
    assert _said(tester) == [(b"user1", b"over"), (b"user2", b"over")]


@pytest.mark.promise("keyed-timers")
def test_a_waiting_timer_by_the_events_key_holds_none_of_a_bolt_beside_its_own(
    fails_once: set[tuple[str, str]],
) -> None:
    fails_once.add(("timer", _USERS[0]))
    tester = _by_both_keys(_OverOnce(500), Over(1_000))
    tester.run([(user, "", 100) for user in _USERS])
    tester.run(watermark_ms=700)
    assert [event.event_time_ms for event in tester.failed] == [500]
    tester.run(watermark_ms=5_000)
    assert sorted(one for one in tester.records("out") if one[1] == b"over") == _ALL_OVER


class _After(Over):
    """Its timers are due so long after their events."""

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        key.timer("over", at=given.event_time_ms + self._at_ms)
        yield from ()


@pytest.mark.promise("keyed-timers")
def test_a_timer_that_waits_for_an_event_that_waits_for_a_retry_begins_no_steps(
    fails_once: set[tuple[str, str]],
) -> None:
    """The event waits for a timer of its key, in a bolt that the other one does not read."""
    fails_once.add(("timer", "fails"))
    tester = _by_both_keys(_OverOnce(500), _After(600))
    tester.run([("fails", "", 100), ("user", "", 150)])
    tester.run([("fails", "", 600), ("last", "", 5_000)])
    for _ in range(3):
        tester.run()
        assert [one.event_time_ms for one in tester.failed] == [500]
        assert tester.next_retry_s == 600.0
        assert tester.records("out") == []
    assert _said(tester) == [(b"fails", b"over"), (b"user", b"over")]


def _by_both_keys(by_event: KeyedBolt, by_field: KeyedBolt) -> TopologyTester:
    """Return a tester of a bolt by the events' key beside one by a field; this one is put out."""
    builder = TopologyBuilder("beside")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    builder.set_bolt("fails", by_event).fields_grouping("events", "key")
    builder.set_bolt("other", by_field, 1).fields_grouping("read", "user")
    builder.set_output("out", key="user", value="said").local_grouping("other")
    return TopologyTester(builder.build(), _PATIENT)


@pytest.mark.promise("keyed-timers")
def test_a_timer_does_not_wait_for_one_of_its_key_in_the_bolt_beside(
    fails_once: set[tuple[str, str]],
) -> None:
    fails_once.add(("timer", "fails"))
    tester = _beside(("fails", _OverOnce(500)), ("other", _After(600)))
    tester.run([("fails", "", 100), ("user", "", 150)])
    tester.run(watermark_ms=800)
    assert [one.event_time_ms for one in (*tester.failed, *tester.held)] == [500]
    assert tester.next_retry_s == 600.0
    assert tester.records("out") == [(b"fails", b"over"), (b"user", b"over")]


class _AgainNow(_OverNow):
    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        key.timer(f"{given.event_time_ms}", at=0)
        yield from ()

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        del timer
        yield key.value, "again", "all"


@pytest.mark.promise("keyed-timers")
def test_a_timer_that_fails_does_not_hold_the_timer_that_it_came_of(
    fails_once: set[tuple[str, str]],
) -> None:
    """That is of the same time and key, in the bolt before. Each would wait for the other."""
    builder = TopologyBuilder("chain")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    builder.set_bolt("over", _OverNow(0), 1).fields_grouping("read", "user")
    builder.set_bolt("again", _AgainNow(0), 1).fields_grouping("over", "user")
    both = builder.set_bolt("later", later, 1)
    both.fields_grouping("over", "user").fields_grouping("again", "user")
    builder.set_output("out", key="user", value="said").local_grouping("later")
    fails_once.update(("later, again", user) for user in _USERS)
    tester = TopologyTester(builder.build(), _PATIENT)
    tester.run([(user, "", at_ms) for at_ms in (100, 101) for user in _USERS])
    both_said = [*_ALL_OVER, *((user.encode(), b"again") for user in _USERS)]
    assert _said(tester) == sorted(2 * both_said)


@pytest.mark.promise("keyed-timers")
@pytest.mark.usefixtures("little_memory")
def test_a_timer_without_room_is_called_though_one_of_its_key_waits_in_the_bolt_beside(
    fails_once: set[tuple[str, str]],
) -> None:
    """It is the only one of the last step."""
    fails_once.add(("timer", "zzzzzz"))
    tester = _beside(("fails", _OverOnce(500)), ("other", Over(1_000)))
    tester.run([("zzzzzz", "", 100), *((user, "", 700) for user in _USERS[:8])])
    tester.run(watermark_ms=5_000)
    for _ in range(10):
        if tester.next_retry_s == tester.now_s:
            tester.run()
    assert [event.event_time_ms for event in tester.failed] == [500]
    over = sorted(one for one in tester.records("out") if one[1] == b"over")
    assert over == [*_ALL_OVER[:8], (b"zzzzzz", b"over")]

"""Keyed bolts in transactional topologies: what is kept of keys is their batch's."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TransactionalTopologyBuilder,
    TransactionTester,
    bolt,
)
from sequitur.consumer.topology.step.transaction_run import CommitRun
from sequitur.errors import FailBatch, TopologyBuildError, TopologyError, TopologyFileError
from sequitur.testing import ReorderTester
from sequitur.windows import Count as CountOf
from sequitur.windows import tumbling
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sequitur.consumer.topology import Key, Timer, TransactionalTopology, Tuple
    from sequitur.consumer.topology.step.run import StepResult

_MOST = 3
_SETTINGS = ProcessSettings.model_validate(
    {"max_attempts": _MOST, "retry_delay": "10 ms", "retry_jitter": 0}
)


def _fail(where: str, plan: dict[str, Any], attempt: int) -> None:
    if plan["where"] == where and attempt <= plan["fails"]:
        raise ValueError(plan)


class Count(KeyedBolt):
    """Counts the events of a user: in the state, and by word in the map."""

    fields = ("transaction", "user", "count", "words", "plan")
    state = int
    state_map = dict[str, int]

    def process(self, event: Tuple, key: Key) -> Iterator[Any]:
        plan = event["plan"]
        key.state = (key.state or 0) + 1
        key.state_map.put(plan["word"], key.state_map.get(plan["word"], 0) + 1)
        _fail("call", plan, event.attempt)
        yield event["transaction"], key.value, key.state, dict(key.state_map.range()), plan


class Seen(KeyedBolt):
    """Keeps the numbers of the events of a key."""

    fields = ("transaction", "key", "numbers")
    state_list = list[int]

    def process(self, event: Tuple, key: Key) -> Iterator[Any]:
        plan = json.loads(event["value"])
        key.state_list.append(plan["n"])
        _fail("seen", plan, event.attempt)
        yield event["transaction"], key.value, list(key.state_list)


@bolt(fields=("transaction", "user", "plan"))
def read(event: Tuple) -> Iterator[Any]:
    plan = json.loads(event["value"])
    _fail("early", plan, event.attempt)
    for user in plan["users"]:
        yield event["transaction"], user, plan


@bolt(fields=Count.fields)
def later(event: Tuple) -> Iterator[Any]:
    _fail("later", event["plan"], event.attempt)
    yield event.values


class Batch(BaseTransactionalBolt):
    """Fails its batch now and then, in each phase."""

    fields = ("transaction", "count")

    def __init__(self) -> None:
        self.count = 0

    def process(self, given: Tuple) -> None:
        del given
        self.count += 1

    def finish_batch(self) -> None:
        if _RANDOM.random() < 0.3:
            raise FailBatch("by chance")
        self.collector.emit((self.transaction, self.count))


_RANDOM = Random(7)


def _topology(tasks: int = 2, uid: str | None = None) -> TransactionalTopology:
    builder = TransactionalTopologyBuilder("counts", "events")
    builder.set_bolt("seen", Seen(), tasks).fields_grouping("events", "key")
    builder.set_output("seen-out", "seen", value="numbers").local_grouping("seen")
    builder.set_bolt("read", read).local_grouping("events")
    builder.set_bolt("count", Count(), tasks, uid=uid).fields_grouping("read", "user")
    builder.set_bolt("later", later).shuffle_grouping("count")
    builder.set_bolt("batch", Batch()).shuffle_grouping("later")
    builder.set_committer_bolt("commit", Batch()).global_grouping("batch")
    output = builder.set_output("out", "out", key="user", value="words")
    output.local_grouping("later")
    return builder.build()


def _events(count: int, random: Random) -> list[dict[str, Any]]:
    return [
        {
            "n": number,
            "users": random.sample("xyz", random.randint(1, 2)),
            "word": random.choice("abc"),
            "fails": random.choice([0] * 12 + [1, 2, _MOST]),
            "where": random.choice(["early", "call", "later", "seen"]),
        }
        for number in range(count)
    ]


@pytest.mark.promise("keyed-in-transactions")
@pytest.mark.parametrize("seed", range(8))
def test_keys_are_those_of_committed_batches(seed: int) -> None:
    """Events, tries of both phases and their retries fail. Each event that is done counts once."""
    random = Random(seed)
    events = _events(80, random)
    tester = TransactionTester(_topology(), _SETTINGS, partitions=2)
    left = list(events)
    while left:
        size = random.randint(1, 12)
        some, left = left[:size], left[size:]
        tester.run([(_key_of(plan), plan, plan["n"]) for plan in some])
        tester.advance(random.choice([0, 0.01, 0.02]))
    tester.retry_all()
    assert len(tester.acked) == sum(plan["fails"] < _MOST for plan in events)
    assert tester.failed_tries
    assert _last(tester.records("out")) == _counts(events)
    assert _last(tester.records("seen-out")) == _numbers(events)


def _counts(events: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """How often each user had each word in events that are done."""
    counts: dict[str, Counter[str]] = {}
    for plan in events:
        for user in plan["users"] if plan["fails"] < _MOST else ():
            counts.setdefault(user, Counter())[plan["word"]] += 1
    return counts


def _numbers(events: list[dict[str, Any]]) -> dict[str, list[int]]:
    """The numbers of the events of each key that are done, in their order."""
    numbers: dict[str, list[int]] = {}
    for plan in events:
        if plan["fails"] < _MOST:
            numbers.setdefault(_key_of(plan), []).append(plan["n"])
    return numbers


def _key_of(plan: dict[str, Any]) -> str:
    return f"k{plan['n'] % 5}"


def _last(records: Iterable[tuple[bytes | None, bytes | None]]) -> dict[str, Any]:
    """The last value of each key."""
    return {(key or b"").decode(): json.loads(value or b"") for key, value in records}


_T0 = 1_700_000_000_000
_JOB = {
    "input_topics": ["in"],
    "output_topic": "ordered",
    "event_time": "json:at",
    "delay": "0 s",
    "idle_timeout": "10 s",
}


class _DeathError(Exception):
    """Stands for the end of the driver."""


@pytest.mark.promise("keyed-in-transactions")
@pytest.mark.parametrize("seed", range(3))
def test_a_job_goes_on_with_keys_of_batches_after_each_restart(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job dies before the commit or behind it, and the bolt has other numbers of tasks."""
    random = Random(seed)
    events = [{**one, "at": _T0 + one["n"]} for one in _events(60, random)]
    commit, deaths = CommitRun.run, Random(seed)

    def dying(run: CommitRun) -> StepResult:
        when = deaths.random()
        if when < 0.25:
            raise _DeathError
        found = commit(run)
        if when < 0.5:
            raise _DeathError
        return found

    monkeypatch.setattr(CommitRun, "run", dying)
    with ReorderTester(_JOB, _topology(), process=_SETTINGS, partitions=2, now_ms=_T0) as tester:
        left, died = list(events), 0
        while left:
            some, left = left[:6], left[6:]
            given = [{"key": _key_of(one), "value": json.dumps(one)} for one in some]
            try:
                tester.run(given)
                tester.advance(random.choice([0, 0.01, 0.02]))
            except _DeathError:
                died += 1
                assert tester._stage is not None
                topology = _topology(random.randint(1, 4))
                tester._stage = replace(tester._stage, topology=topology)
        monkeypatch.undo()
        tester.drain()
        counts = tester.report().processed or {}
        dead = sum(one["fails"] >= _MOST for one in events)
        assert died
        assert (counts["taken"], counts["pending"], counts["dead"]) == (len(events), 0, dead)
        for topic, expected in (("out", _counts(events)), ("seen", _numbers(events))):
            assert _last((one.key, one.value) for one in tester.records(topic)) == expected


def _die(_: CommitRun) -> StepResult:
    raise _DeathError


@pytest.mark.promise("keyed-in-transactions")
def test_a_start_refuses_a_prepared_batch_of_a_keyed_bolt_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = {"n": 0, "users": ["x"], "word": "a", "fails": 0, "where": "", "at": _T0}
    with ReorderTester(_JOB, _topology(), process=_SETTINGS, now_ms=_T0) as tester:
        with monkeypatch.context() as patched:
            patched.setattr(CommitRun, "run", _die)
            with pytest.raises(_DeathError):
                tester.run([{"key": "k", "value": json.dumps(plan)}])
        assert tester._stage is not None
        tester._stage = replace(tester._stage, topology=_topology(uid="other"))
        with pytest.raises(TopologyFileError, match=r"keyed bolt 'count'.*--drop-state count"):
            tester.drain()


class Timed(Count):
    def on_timer(self, timer: Timer, key: Key) -> None:
        del timer, key


class Brief(Count):
    ttl = "1 h"


class Lags(Count):
    lag_ms = 1_000


class Drains(Count):
    drains = True


class Awaits(KeyedBolt):
    fields = Count.fields

    async def process(self, event: Tuple, key: Key) -> None:
        del event, key


class Ends(Count):
    def finish_batch(self) -> None:
        pass


class Sets(Count):
    def process(self, event: Tuple, key: Key) -> Iterator[Any]:
        yield from ()
        key.timer("t", at=event.event_time_ms)


@pytest.mark.promise("keyed-in-transactions")
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Timed, "on_timer"),
        (Brief, "ttl"),
        (Lags, "lag_ms"),
        (Drains, "drains"),
        (Awaits, "an async process"),
        (Ends, "finish_batch or snapshot"),
    ],
)
def test_a_keyed_bolt_that_does_not_go_with_transactions(made: type[KeyedBolt], said: str) -> None:
    builder = TransactionalTopologyBuilder("refused", "events")
    with pytest.raises(TopologyBuildError, match=f"'count': {said}: .*has none"):
        builder.set_bolt("count", made()).fields_grouping("events", "key")


@pytest.mark.promise("keyed-in-transactions")
def test_windows_do_not_go_with_transactions() -> None:
    builder = TransactionalTopologyBuilder("refused", "events")
    with pytest.raises(TopologyBuildError, match="'sizes': on_timer"):
        builder.set_bolt("sizes", tumbling("1 s", late="drop", count=CountOf()))


@pytest.mark.promise("keyed-in-transactions")
def test_a_timer_in_a_transaction_fails_its_event() -> None:
    tester = TransactionTester(_of(Sets()), _SETTINGS)
    tester.run([("k", {"users": ["x"], "word": "a", "fails": 0, "where": "", "n": 0})])
    tester.retry_all()
    (letter,) = tester.dead_letters
    assert "a transactional topology calls no timers of keys" in letter.detail


class Waits(KeyedBolt):
    """Sets a timer, and none in a transaction."""

    fields = ("user",)

    def process(self, event: Tuple, key: Key) -> Iterator[Any]:
        yield from ()
        key.timer("t", at=event.event_time_ms + 60_000)

    def on_timer(self, timer: Timer, key: Key) -> None:
        del timer, key


@pytest.mark.promise("keyed-in-transactions")
def test_a_start_refuses_timers_that_a_transactional_topology_would_not_call() -> None:
    plan = {"n": 0, "users": ["x"], "word": "a", "fails": 0, "where": "", "at": _T0}
    row = {"key": "k", "value": json.dumps(plan)}
    builder = TopologyBuilder("counts")
    builder.set_spout("events")
    builder.set_bolt("count", Waits()).fields_grouping("events", "topic")
    with ReorderTester(_JOB, builder.build(), process=_SETTINGS, now_ms=_T0) as tester:
        tester.run([row])
        assert tester._stage is not None
        tester._stage = replace(tester._stage, topology=_topology())
        with pytest.raises(TopologyFileError, match=r"timers of keyed bolt 'count'.*'counts' is"):
            tester.restart()
        stage = replace(tester._stage, topology=_topology(uid="new"), drop_state=("count",))
        tester._stage = stage
        tester.restart()
        tester.run([row])
        assert _last((one.key, one.value) for one in tester.records("out")) == {"x": {"a": 1}}


@pytest.mark.promise("keyed-in-transactions")
def test_a_keyed_bolt_behind_a_committer_is_refused() -> None:
    builder = TransactionalTopologyBuilder("refused", "events")
    builder.set_committer_bolt("commit", Batch()).global_grouping("events")
    builder.set_bolt("count", Count()).fields_grouping("commit", "count")
    with pytest.raises(TopologyBuildError, match="keyed bolt 'count' reads a committer"):
        builder.build()


@pytest.mark.promise("keyed-in-transactions")
def test_batches_of_keyed_bolts_are_not_processed_ahead() -> None:
    settings = ProcessSettings(max_batches_pending=2)
    with pytest.raises(TopologyError, match=r"max_batches_pending = 2: .*keyed bolts"):
        TransactionTester(_topology(), settings)


def _of(count: Count) -> TransactionalTopology:
    builder = TransactionalTopologyBuilder("counts", "events")
    builder.set_bolt("read", read).local_grouping("events")
    builder.set_bolt("count", count).fields_grouping("read", "user")
    builder.set_committer_bolt("commit", Batch()).global_grouping("count")
    return builder.build()


class Sums(BaseTransactionalBolt):
    """Tells at the end of a batch how many events of each user there were."""

    fields = ("transaction", "user", "count")

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def process(self, given: Tuple) -> None:
        self.counts[given["user"]] += 1

    def finish_batch(self) -> None:
        for user, count in self.counts.items():
            self.collector.emit((self.transaction, user, count))


class Total(KeyedBolt):
    fields = ("transaction", "user", "count")
    state = int

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        key.state = (key.state or 0) + given["count"]
        yield given["transaction"], key.value, key.state


@pytest.mark.promise("keyed-in-transactions")
@pytest.mark.parametrize("seed", range(4))
def test_a_keyed_bolt_reads_what_belongs_to_a_batch(seed: int) -> None:
    """What a batch bolt emits at its end is of no event, and is undone with the try."""
    random = Random(seed)
    builder = TransactionalTopologyBuilder("sums", "events")
    builder.set_bolt("read", read).local_grouping("events")
    builder.set_bolt("sums", Sums(), 2).fields_grouping("read", "user")
    builder.set_bolt("total", Total(), 2).fields_grouping("sums", "user")
    builder.set_output("out", key="user", value="count").local_grouping("total")
    builder.set_committer_bolt("commit", Batch()).global_grouping("total")
    events = [{**one, "where": "early"} for one in _events(60, random)]
    tester, left = TransactionTester(builder.build(), _SETTINGS, partitions=2), list(events)
    while left:
        size = random.randint(1, 12)
        some, left = left[:size], left[size:]
        tester.run([(_key_of(plan), plan, plan["n"]) for plan in some])
        tester.advance(random.choice([0, 0.01, 0.02]))
    tester.retry_all()
    found = {user: sum(words.values()) for user, words in _counts(events).items()}
    assert _last(tester.records("out")) == found

"""Where batches end: by what is there, by how much of it, and by what topics become."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.retry import Outages
from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import LogRangeError, RetriableError, TopicError, UnansweredError
from sequitur.kafka.log_reading import EARLIEST
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.pipelines.local.planner import TOPICS_EACH_S, Planner, shares
from sequitur.pipelines.ordering.batch_size import BatchSize
from sequitur.pipelines.ordering.restarts import Begin
from sequitur.pipelines.store.spark_part import SparkPart
from sequitur.pipelines.store.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from sequitur.pipelines.ordering.context import Spans

_A0: Final = SourcePartition("a", 0)
_A1: Final = SourcePartition("a", 1)
_B0: Final = SourcePartition("b", 0)
_WAIT_S: Final = 7.0


class _Kafka:
    """Topics with a first offset and an end for each partition; see `Topics` and `Ends`."""

    def __init__(self, ends: dict[SourcePartition, int]) -> None:
        self.logs = dict(ends)
        self.first: dict[SourcePartition, int] = {}
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.sent: dict[SourcePartition, int] | None = None  # of leaders that hang, how far

    def read_ahead(self, spans: Spans) -> Spans | None:
        if self.sent is None:
            return None
        return {
            where: (first, min(stop, max(first, self.sent.get(where, stop))))
            for where, (first, stop) in spans.items()
        }

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for topic, _ in self.logs:
            found[topic] = found.get(topic, 0) + 1
        return found

    def require(self, topic: str) -> int:
        self.asked.append("topics")
        if topic not in self.counts():
            raise TopicError(f"input topic {topic!r} does not exist")
        return self.counts()[topic]

    def matching(
        self, _pattern: str, matches: Callable[[str], bool], _written: Iterable[str]
    ) -> dict[str, int]:
        self.asked.append("topics")
        return {topic: count for topic, count in self.counts().items() if matches(topic)}

    def low_watermarks(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        return {where: self.first.get(where, 0) for where in partitions}

    def ends(self, places: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        self.asked.append("ends")
        if self.error is not None:
            raise self.error
        for where, place in places.items():
            if not self.first.get(where, 0) <= place <= self.logs[where]:
                raise LogRangeError(f"{where} has no offset {place}")
        return {where: self.logs[where] for where in places}

    def later(
        self, places: Mapping[SourcePartition, int], wait_s: float
    ) -> dict[SourcePartition, int]:
        assert wait_s == _WAIT_S
        # Of a partition without a leader nothing is heard.
        found = self.ends({where: place for where, place in places.items() if where in self.logs})
        return {where: end for where, end in found.items() if end > places[where]}


class _Life:
    """A life's planner; the next one begins with `again`."""

    def __init__(self, root: Path, kafka: _Kafka, **settings: Any) -> None:
        self.root = root
        self.kafka = kafka
        self.now_s = 0.0
        self.settings = {"input_topics": ["a"], **settings}
        self.places: dict[SourcePartition, int] | None = None
        self.is_bounded = False
        self.size: BatchSize | None = None

    def again(self, patience_s: float = 0.0) -> Planner:
        settings = ReorderSettings.model_validate(
            {"output_topic": "out", "event_time": "json:at", "checkpoint": "x", **self.settings}
        )
        storage = LocalStorage(self.root)
        self.log = PlanLog(storage, SparkPart(storage), "spark", lambda: None, lambda _: None)
        outages = Outages(patience_s, 0, wait=lambda _: False, tell=len)
        source = SimpleNamespace(matcher=lambda _: lambda topic: topic != "other")
        job: Any = SimpleNamespace(
            settings=settings,
            topics=self.kafka,
            source=source,
            outages=outages,
            is_bounded=self.is_bounded,
        )
        topics = {one: n for one, n in self.kafka.counts().items() if one != "other"}
        begin = Begin(topics, self.places)
        return Planner(
            job,
            self.log,
            self.kafka,
            begin,
            self.size,
            read_ahead=self.kafka.read_ahead,
            steady_s=lambda: self.now_s,
        )

    def batch(self, planner: Planner) -> tuple[int, Mapping[SourcePartition, int]] | None:
        plan = planner.next(_WAIT_S)
        if plan is None:
            return None
        self.log.commit()
        return plan.batch_id, plan.ends


def test_a_batch_has_what_is_there_and_names_every_partition(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 5, _A1: 0})
    life = _Life(tmp_path, kafka)
    planner = life.again()
    assert life.batch(planner) == (0, {_A0: 5, _A1: 0})
    assert life.batch(planner) is None
    kafka.logs[_A1] = 3
    assert life.batch(planner) == (1, {_A0: 5, _A1: 3})
    assert SparkPart(LocalStorage(tmp_path)).first_offsets("spark") == {_A0: 0, _A1: 0}


def test_the_next_life_goes_on_where_the_last_plan_ends(tmp_path: Path) -> None:
    """One that was not committed comes again, as it was planned."""
    kafka = _Kafka({_A0: 5, _A1: 1})
    life = _Life(tmp_path, kafka)
    planned = life.again().next(_WAIT_S)
    kafka.logs = {_A0: 9, _A1: 9}
    planner = life.again()
    assert planner.next(_WAIT_S) == planned
    assert planner.next(_WAIT_S) == planned
    assert life.batch(planner) == (0, {_A0: 5, _A1: 1})
    assert life.batch(planner) == (1, {_A0: 9, _A1: 9})


def test_batches_grow_with_the_backlog(tmp_path: Path) -> None:
    """Nothing is asked for while rows are known to be there."""
    kafka = _Kafka({_A0: 3_000_000, _A1: 1_000_000})
    life = _Life(tmp_path, kafka)
    life.size = BatchSize(2_000_000, 100.0)
    planner = life.again()
    read = []
    before = 0
    while (found := life.batch(planner)) is not None:
        total = sum(found[1].values())
        read.append(total - before)
        planner.take(total - before, 100 * (total - before))
        before = total
    assert read == [200_000, 800_000, 2_000_000, 1_000_000]
    assert kafka.asked == ["ends", "ends"]


def test_without_a_limit_a_batch_takes_all(tmp_path: Path) -> None:
    life = _Life(tmp_path, _Kafka({_A0: 3_000_000, _A1: 1_000_000}))
    assert life.batch(life.again()) == (0, {_A0: 3_000_000, _A1: 1_000_000})


def test_job_begins_at_the_first_record_or_at_the_newest(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 9, _A1: 9})
    kafka.first = {_A0: 4}
    life = _Life(tmp_path / "earliest", kafka)
    life.again()
    assert life.log.begin({}) == {_A0: 4, _A1: 0}
    life = _Life(tmp_path / "latest", kafka, starting_offsets="latest")
    planner = life.again()
    assert life.log.begin({}) == {_A0: 9, _A1: 9}
    assert life.batch(planner) is None


def test_after_a_reset_the_job_begins_where_its_log_says(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 9, _A1: 9})
    kafka.first = {_A1: 2}
    life = _Life(tmp_path, kafka, starting_offsets="latest")
    life.places = {_A0: 7, _A1: EARLIEST}
    assert life.batch(life.again()) == (0, {_A0: 9, _A1: 9})
    assert SparkPart(LocalStorage(tmp_path)).first_offsets("spark") == {_A0: 7, _A1: 2}


def test_bounded_run_reads_what_was_there_when_it_began(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 5, _A1: 1})
    life = _Life(tmp_path, kafka)
    life.is_bounded = True
    life.size = BatchSize(4, 1.0)
    planner = life.again()
    kafka.logs = {_A0: 50, _A1: 10}
    ends = [found[1] for found in iter(lambda: life.batch(planner), None)]
    assert ends[-1] == {_A0: 5, _A1: 1}
    assert len(ends) == 2


def test_new_partitions_are_read_from_their_beginning(tmp_path: Path) -> None:
    """The brokers are asked for them now and then, and not for each batch."""
    kafka = _Kafka({_A0: 1})
    life = _Life(tmp_path, kafka)
    planner = life.again()
    assert life.batch(planner) == (0, {_A0: 1})
    kafka.logs[_A1] = 2
    assert life.batch(planner) is None
    life.now_s += TOPICS_EACH_S
    assert life.batch(planner) == (1, {_A0: 1, _A1: 2})
    assert kafka.asked.count("topics") == 1


@pytest.mark.promise("order-partitions-added-job")
def test_new_partition_without_rows_has_a_batch_as_on_spark(tmp_path: Path) -> None:
    """The frontier waits for it from then on, for `idle_timeout` and no longer."""
    kafka = _Kafka({_A0: 1})
    life = _Life(tmp_path, kafka)
    planner = life.again()
    life.batch(planner)
    kafka.logs[_A1] = 0
    life.now_s += TOPICS_EACH_S
    assert life.batch(planner) == (1, {_A0: 1, _A1: 0})
    assert life.batch(planner) is None
    kafka.logs[SourcePartition("a", 2)] = 0
    planner = life.again()
    assert life.batch(planner) == (2, {_A0: 1, _A1: 0, SourcePartition("a", 2): 0})
    assert life.batch(planner) is None


def test_new_partition_that_begins_later_has_lost_rows(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 1})
    life = _Life(tmp_path, kafka)
    planner = life.again()
    life.batch(planner)
    kafka.logs[_A1], kafka.first[_A1] = 5, 2
    life.now_s += TOPICS_EACH_S
    with pytest.raises(LogRangeError, match="has no offset 0"):
        planner.next(_WAIT_S)


def test_new_topics_of_a_pattern_are_read(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 1, SourcePartition("other", 0): 3})
    life = _Life(tmp_path, kafka, input_topics=[], input_pattern="[ab]")
    planner = life.again()
    assert life.batch(planner) == (0, {_A0: 1})
    kafka.logs[_B0] = 2
    life.now_s += TOPICS_EACH_S
    assert life.batch(planner) == (1, {_A0: 1, _B0: 2})


@pytest.mark.promise("order-rows-deleted-read")
def test_what_is_lost_is_told_before_it_is_planned(tmp_path: Path) -> None:
    """By retention, by a log that was cut or made anew, or with its topic."""
    kafka = _Kafka({_A0: 5, _B0: 5})
    life = _Life(tmp_path, kafka, input_topics=["a", "b"])
    life.batch(life.again())
    kafka.logs[_A0], kafka.first[_A0] = 9, 7
    with pytest.raises(LogRangeError, match="has no offset 5"):
        life.again()
    kafka.logs[_A0], kafka.first[_A0] = 3, 0
    with pytest.raises(LogRangeError, match="has no offset 5"):
        life.again()
    del kafka.logs[_A0]
    with pytest.raises(TopicError, match="partition 0 of 'a', which the job reads, is gone"):
        life.again()
    assert [one.name for one in (tmp_path / "spark/offsets").iterdir()] == ["0"]


def test_topic_that_is_deleted_meanwhile_is_told_of(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 5, _B0: 5})
    life = _Life(tmp_path, kafka, input_topics=["a", "b"])
    planner = life.again()
    life.batch(planner)
    del kafka.logs[_B0]
    life.now_s += TOPICS_EACH_S
    with pytest.raises(TopicError, match="input topic 'b' does not exist"):
        planner.next(_WAIT_S)


@pytest.mark.promise("order-brokers-away-partition")
def test_brokers_that_are_away_are_waited_for(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 5})
    life = _Life(tmp_path, kafka)
    planner = life.again()
    life.batch(planner)
    kafka.error = RetriableError("no leader answers")
    with pytest.raises(UnansweredError, match="no leader answers"):
        planner.next(_WAIT_S)
    kafka.error = None
    kafka.logs[_A0] = 6
    assert life.batch(planner) == (1, {_A0: 6})


@pytest.mark.promise("order-broker-hangs")
def test_a_plan_has_what_leaders_have_sent(tmp_path: Path) -> None:
    """What one that hangs has not is read once it tells of it again."""
    kafka = _Kafka({_A0: 5, _A1: 5})
    kafka.sent = {_A0: 2}
    life = _Life(tmp_path, kafka)
    planner = life.again()
    assert life.batch(planner) == (0, {_A0: 2, _A1: 5})
    assert not planner.is_behind
    kafka.logs[_A1] = 8
    assert life.batch(planner) == (1, {_A0: 2, _A1: 8})
    assert life.batch(planner) is None
    assert [one.name for one in sorted((tmp_path / "spark/offsets").iterdir())] == ["0", "1"]
    kafka.sent.clear()
    assert life.batch(planner) == (2, {_A0: 5, _A1: 8})


def test_a_bounded_run_waits_for_all_that_it_is_to_read(tmp_path: Path) -> None:
    kafka = _Kafka({_A0: 5, _A1: 5})
    kafka.sent = {_A0: 2}
    life = _Life(tmp_path, kafka)
    life.is_bounded = True
    assert life.batch(life.again()) == (0, {_A0: 5, _A1: 5})


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6),
    st.integers(1, 100),
)
def test_each_partition_gives_by_what_it_has(logs: list[tuple[int, int]], most: int) -> None:
    """A row at least, so that none waits for ever; all together about as many as were asked for."""
    parts = [SourcePartition("t", number) for number in range(len(logs))]
    places = {where: first for where, (first, _) in zip(parts, logs, strict=True)}
    ends = {where: first + rows for where, (first, rows) in zip(parts, logs, strict=True)}
    found = shares(places, ends, most)
    assert found.keys() == {where for where in parts if ends[where] > places[where]}
    assert all(places[where] < end <= ends[where] for where, end in found.items())
    taken, left = (sum(some[where] - places[where] for where in found) for some in (found, ends))
    assert taken < most + max(1, len(found))
    assert taken == left or taken > most - len(found)

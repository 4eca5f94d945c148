"""Lives of a job on a real broker by a random history, beside `ReorderTester` and the reference.

The tester is given each batch as the job has planned it: so batches may end anywhere.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from sequitur.consumer.reorder.reasons import REASON_HEADER
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.kafka.partition import SourcePartition, murmur2
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.testing import ReorderTester
from tests.support.broker_job import BY_DRIVER, BY_TASKS
from tests.support.deaths import DOCUMENTS, DiedError, deadly
from tests.support.events import Event
from tests.support.job_on_lists import PLACE, alike, documents_in, rows_of
from tests.support.reorder_histories import MAX_FUTURE_SKEW_MS, History, histories
from tests.support.reorder_reference import Record, Reference
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sequitur.cli.topic_reader import TopicRecord
    from sequitur.pipelines.ordering.run_job import Runner
    from sequitur.testing import ReorderedRecord
    from tests.conftest import MakeTopic
    from tests.support.broker_job import BrokerJob
    from tests.support.reorder_histories import HistoryStep

PARTITIONS: Final = 4  # one more than the histories use: it is never seen
_SPARK: Final = "spark"
_STEPS: Final = 4
_DEATHS: Final = (f"{_SPARK}/offsets/", *DOCUMENTS, f"{_SPARK}/commits/")
"""What is written for a batch, in this order; the first and the last by Java, if Spark runs it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """How a step of a history is carried out.

    Attributes:
        runners: Of the life that dies in it, and of the one that carries it out.
        document: Where it dies, if it does.
        is_written: Whether that document is written then.
        ways: Who stages the rows of those lives.
        most_rows: How many rows a batch has at most; None for all there are.
        repeats: Whether the commit of the last batch before it is gone.
    """

    runners: tuple[str, str]
    document: str
    is_written: bool
    ways: tuple[Mapping[str, int], Mapping[str, int]]
    most_rows: int | None
    repeats: bool


def turns(runners: Sequence[str]) -> st.SearchStrategy[Turn]:
    one, way = st.sampled_from(runners), st.sampled_from([BY_TASKS, BY_DRIVER])
    return st.builds(
        Turn,
        st.tuples(one, one),
        st.sampled_from(_DEATHS),
        st.booleans(),
        st.tuples(way, way),
        st.sampled_from([None, 3, 7]),
        st.booleans(),
    )


def meet(
    job: BrokerJob,
    make_topic: MakeTopic,
    folder: str,
    runners: Mapping[str, Callable[[], Runner]],
    *,
    examples: int,
    part: int = 0,
) -> Counter[str]:
    """Have jobs on topics of their own meet so many histories, and check what they put out.

    Each part has histories of its own, the same in each run of the tests.

    Returns:
        What has happened to them; see `Lives.met`.
    """
    met: Counter[str] = Counter()

    @seed(part)
    @settings(
        max_examples=examples,
        phases=[Phase.generate],  # making it smaller takes much of a broker's time
        suppress_health_check=list(HealthCheck),
    )
    @given(
        history=histories(min_steps=2, max_steps=_STEPS, min_sent=1, max_sent=12),
        drawn=st.lists(turns(list(runners)), min_size=_STEPS, max_size=_STEPS),
    )
    def each(history: History, drawn: list[Turn]) -> None:
        # The first that Hypothesis gives is the smallest: a row a step, and nothing happens to it.
        assume(sum(len(step.sent) for step in history.steps) > 2 * len(history.steps))
        topic = make_topic(partitions=PARTITIONS)
        names = {"input_topics": [topic], "output_topic": f"{topic}.ordered"}
        lives = Lives.of(job, history, runners, checkpoint=f"{folder}-{uuid4().hex}", **names)
        with lives.tester:
            for step, turn in zip(history.steps, drawn, strict=False):
                lives.live(step, turn)
            lives.drain(drawn[-1])
            lives.check()
        met.update(lives.met)

    each()
    return met


class FollowingTester(ReorderTester):
    """Runs batches that are planned elsewhere."""

    def follow(self, ends: Mapping[SourcePartition, int]) -> None:
        """Run a batch that ends there."""
        engine = self._opened()
        plans = PlanLog.of(self._checkpoint, engine.input.plans_folder)
        if plans.newest is None:
            plans.begin(self._begins(engine))
        plans.plan(ends)
        self.run()

    def come_back(self, *, repeats: bool) -> None:
        """Begin a new life, which repeats the last batch first."""
        self.restart(repeats=repeats)
        if repeats and (self.folder / _SPARK / "offsets").exists():
            self.run()


@dataclass
class Lives:
    """A job on a topic of its own, beside the two.

    Attributes:
        job: The job, with a checkpoint of its own.
        history: What it meets.
        runners: What its lives run on, by the names in the turns.
        met: What has happened to the job, in words.
    """

    job: BrokerJob
    history: History
    runners: Mapping[str, Callable[[], Runner]]
    met: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls,
        job: BrokerJob,
        history: History,
        runners: Mapping[str, Callable[[], Runner]],
        **names: Any,
    ) -> Self:
        changed = job.with_settings(
            delay=timedelta(milliseconds=history.delay_ms),
            idle_timeout=timedelta(milliseconds=history.idle_timeout_ms),
            max_future_skew=timedelta(milliseconds=MAX_FUTURE_SKEW_MS),
            **names,
        )
        return cls(changed, history, runners)

    def __post_init__(self) -> None:
        self._now_ms = self.history.start_ms
        self._places = [SourcePartition(self.job.topic, number) for number in range(PARTITIONS)]
        self._sent: dict[SourcePartition, list[Record]] = {where: [] for where in self._places}
        self._ends: dict[tuple[str, int], int] = dict.fromkeys(self._places, 0)
        self._read = dict.fromkeys(self._places, 0)
        self._followed = 0
        self._last_runner = ""
        self.reference = Reference(
            delay_ms=self.history.delay_ms,
            idle_timeout_ms=self.history.idle_timeout_ms,
            max_future_skew_ms=MAX_FUTURE_SKEW_MS,
            rescue=self.job.settings.rescue,
            is_bounded=True,
        )
        self.tester = FollowingTester(
            self.job.settings,
            partitions=PARTITIONS,
            now_ms=self.history.start_ms,
            available_now=True,
        )

    def live(self, step: HistoryStep, turn: Turn) -> None:
        """Carry out a step: in a life, or in two when the first one dies in it."""
        self._now_ms += step.passed_ms
        self.tester.now_ms = self._now_ms
        self._send(step)
        repeats = turn.repeats and self._lose_commit()
        job = self.job.with_settings(max_offsets_per_trigger=turn.most_rows)
        if step.dies:
            try:
                with deadly(turn.document, is_written=turn.is_written):
                    self._run(job, turn.runners[0], turn.ways[0])
            except DiedError:
                self.met["dead"] += 1  # else nothing was due, or Java has written it
        self._run(job, turn.runners[1], turn.ways[1])
        self.tester.come_back(repeats=repeats)
        self._follow()

    def drain(self, turn: Turn) -> None:
        self._run(self.job, turn.runners[0], turn.ways[0], drain=True)
        self.tester.drain()
        self.reference.drain()

    def check(self) -> None:
        """Check that the rows are the reference's and the tester's, and each step decided alike."""
        reference, tester = self.reference, self.tester
        released, late = _by_partition(self.job.released()), sorted(map(_place, self.job.late()))
        aside = sorted(map(_set_aside, self.job.quarantined()))
        assert released == _expected(reference.released)
        assert late == sorted(map(_place_of, reference.late))
        assert aside == sorted((_place_of(one), reason) for one, reason in reference.quarantined)
        assert released == _by_partition(tester.released)
        assert late == sorted(map(_place, tester.late))
        assert aside == sorted(map(_set_aside, tester.quarantined))
        for folder in ("frontier", "done"):
            wanted = documents_in(tester.folder / folder)
            for one, other in zip(map(alike, self._documents(folder)), wanted, strict=True):
                unlike = [name for name in one | other if one.get(name) != other.get(name)]
                assert not unlike, f"{folder}: {[(name, one, other) for name in unlike]}"

    def _documents(self, folder: str) -> list[Any]:
        # A life that dies tells nobody of its last step, though it may have marked it as done.
        storage = self.job.runner().storage(self.job.settings.checkpoint)
        return [json.loads(storage.read(f"{folder}/{name}")) for name in storage.names(folder)]

    def _run(
        self, job: BrokerJob, runner: str, way: Mapping[str, int], *, drain: bool = False
    ) -> None:
        self.met[runner] += 1
        self.met["changed"] += self._last_runner not in {"", runner}
        self._last_runner = runner
        life = replace(job.with_settings(**way), runner=self.runners[runner])
        life.run(drain=drain, now_ms=lambda: self._now_ms)

    def _send(self, step: HistoryStep) -> None:
        rows, records = rows_of(step, self.job.topic, self._ends)
        self.tester.produce(rows)
        for record in records:
            self._sent[SourcePartition(record.topic, record.partition)].append(record)
        self.job.produce(
            Event(
                value=record.value,
                key=None if record.key is None else record.key.encode(),
                headers=[(PLACE, _place_of(record).encode())],
                partition=record.partition,
            )
            for record in records
        )

    def _lose_commit(self) -> bool:
        """Let the last batch come again; whether there is one, and its commit can be taken away."""
        folder = Path(self.job.settings.checkpoint, _SPARK, "commits")
        if not folder.exists():  # nothing yet, or a store
            return False
        newest = max(int(one.name) for one in folder.iterdir() if one.name.isdecimal())
        (folder / str(newest)).unlink()
        (folder / f".{newest}.crc").unlink(missing_ok=True)
        self.met["repeated"] += 1
        return True

    def _follow(self) -> None:
        """Give the tester and the reference what the job has read since, batch by batch."""
        entries = self._documents("frontier")
        batches = [one for one in entries[self._followed :] if one["kind"] == StepKind.BATCH]
        for number, entry in enumerate(batches):
            planned = {SourcePartition(*where): end for *where, end in entry["planned"]}
            self.tester.follow(planned)
            self.met["cut short"] += planned != self._ends
            records = [
                record
                for where, end in planned.items()
                for record in self._sent[where][self._read[where] : end]
            ]
            self._read |= planned
            self.reference.step(
                records, self._places, now_ms=self._now_ms, ends=self._ends, begins=number == 0
            )
        self._followed = len(entries)


def _by_partition(records: Iterable[TopicRecord | ReorderedRecord]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(_place(record))
    return found


def _expected(records: Iterable[Record]) -> dict[int, list[str]]:
    expected: dict[int, list[str]] = {}
    for record in records:
        partition = record.partition
        if record.key is not None:
            partition = (murmur2(record.key.encode()) & 0x7FFFFFFF) % PARTITIONS
        expected.setdefault(partition, []).append(_place_of(record))
    return expected


def _place(record: TopicRecord | ReorderedRecord) -> str:
    return (record.header(PLACE) or b"").decode()


def _place_of(record: Record) -> str:
    return f"{record.partition}:{record.offset}"


def _set_aside(record: TopicRecord | ReorderedRecord) -> tuple[str, str]:
    return _place(record), (record.header(REASON_HEADER) or b"").decode()

"""Lives of one job on one checkpoint, each ended by SIGKILL but the last.

A life that is to end in the middle of something is held, looked at, and killed where it stands.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from confluent_kafka import Consumer, Producer

from sequitur.base.copy_headers import DEAD_COMPONENT_HEADER
from sequitur.cli.topic_reader import watermarks
from sequitur.consumer.reorder import ReorderSettings
from sequitur.producer import KafkaSettings
from tests.spark.checkpoint_places import may_be_taken
from tests.spark.submitted_job import SubmittedJob
from tests.support.broker_job import BY_DRIVER, BY_TASKS
from tests.support.output_reading import read_output
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from random import Random

    from tests.spark.checkpoint_places import CheckpointPlace
    from tests.support.job_process import JobProcess

    T = TypeVar("T")
    W = TypeVar("W")

_UP_TIMEOUT_S = 5 * PATIENCE_S

_T0 = 1_700_000_000_000
_KEYS = 23
BURST = 3_000
ROWS_A_BATCH = 400
_DISORDER_MS = 900
_LATE_MS = 30_000
_STARTING_S = 6.0
_COUNT_EVERY_S = 0.05


def in_turns(moments: Sequence[T], ways: Sequence[W]) -> Iterator[tuple[T, Sequence[W]]]:
    """Yield moments in turns, each with ways in turns from another one on, until all have met."""
    for number in itertools.count():
        turn = number + number // math.lcm(len(moments), len(ways))
        first = turn % len(ways)
        yield moments[number % len(moments)], (*ways[first:], *ways[:first])


@dataclass
class Rounds:
    """Lives of one job on one checkpoint, each ended by SIGKILL but the last.

    Attributes:
        kafka: The broker.
        settings: The job's settings.
        place: Where its checkpoint is.
        random: Of the events and of the moments.
        sent: Number of events sent so far.
        job: Further arguments of `SubmittedJob`: a topology behind the job, or another master.
        ways: How lives stage their batches, in turns.
        cut_short: Lives that ended in the middle of a step.
        disturb: Called before each life but the last.
    """

    kafka: KafkaSettings
    settings: ReorderSettings
    place: CheckpointPlace
    random: Random
    sent: int = 0
    job: dict[str, Any] = field(default_factory=dict)
    ways: Sequence[Mapping[str, int]] = (BY_TASKS, BY_DRIVER)
    cut_short: int = 0
    disturb: Callable[[], object] = lambda: None

    @classmethod
    def on(
        cls,
        bootstrap_servers: str,
        topic: str,
        place: CheckpointPlace,
        random: Random,
        *,
        job: dict[str, Any] | None = None,
    ) -> Self:
        """Of a job with a delay of 1 s before a topic of four partitions."""
        settings = ReorderSettings.model_validate(
            {
                "input_topics": [topic],
                "output_topic": f"{topic}.ordered",
                "event_time": "json:at",
                "delay": "1 s",
                "idle_timeout": "1 h",  # a job that is dead for long must not call its rows late
                "checkpoint": place.uri,
                "max_offsets_per_trigger": ROWS_A_BATCH,
            }
        )
        kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
        return cls(kafka, settings, place, random, job=job or {})

    def feed(self, events: int = BURST) -> None:
        producer = Producer({**self.kafka.librdkafka(), "enable.idempotence": True})
        for key, value in self.numbered(events):
            producer.produce(self.settings.input_topics[0], value, key)
        assert producer.flush(PATIENCE_S) == 0

    def numbered(self, events: int) -> Iterator[tuple[str, str]]:
        """Yield keys and values: out of order, few of them late by far, few without a time."""
        first, self.sent = self.sent, self.sent + events
        numbers = sorted(
            range(first, self.sent), key=lambda n: 10 * n + self.random.randrange(_DISORDER_MS)
        )
        for number in numbers:
            chance = self.random.random()
            at: object = _T0 + 10 * number - (_LATE_MS if chance < 0.01 else 0)
            if chance > 0.99:
                at = "unknown"
            key = f"key-{number % _KEYS}"
            yield key, json.dumps({"n": number, "at": at, "key": key})

    def live_and_die(self, moment: Callable[[Rounds, JobProcess], None]) -> None:
        """One life: events come, and at the moment it is killed."""
        self.disturb()
        with self._life() as life:
            self.feed()
            moment(self, life)
            life.kill()
        self.cut_short += self._is_in_a_step()

    def finish(self) -> dict[str, int]:
        """The last life reads all there is, releases it, and ends by itself; its report."""
        rest = self.settings.model_copy(update={"max_offsets_per_trigger": 100_000})
        with self._life("--available-now", "--drain", settings=rest) as life:
            lines = list(life.steps())
            life.end()
        return lines[-1]

    def overtake(self) -> None:
        """Two lives at once: one is held in a step, another takes over, and then both go on."""
        self.disturb()
        with contextlib.ExitStack() as lives:
            older = lives.enter_context(self._life())
            self.feed()
            with self._held_when(older, self._is_logged):
                owner = self._newest("owners")
                self._wait_for(older, functools.partial(may_be_taken, self.place.ours))
                newer = lives.enter_context(self._life())
                self._wait_for(newer, lambda: self._newest("owners") != owner)
            self.feed(ROWS_A_BATCH)
            older.end(status=3)
            said = older.complaints()
            assert "has taken this checkpoint over" in said, said
            # Where both have looked for a newer owner at once, the document decides.
            has_won = next(newer.steps(), None) is not None
            assert has_won or "is there already" in newer.complaints(), newer.complaints()
        self.cut_short += 1

    def outlive(self, rounds: int) -> dict[str, Any]:
        """So many lives, each killed at another kind of moment, and a last one; its report."""
        moments = [
            Rounds.in_a_step,
            Rounds.while_rows_go_out,
            Rounds.between_steps,
            Rounds.while_it_starts,
        ]
        for moment, ways in itertools.islice(in_turns(moments, self.ways), rounds):
            self.ways = ways
            self.live_and_die(moment)
        assert self.cut_short > 0, "no life was ended in the middle of anything"
        return self.finish()

    def check(
        self, report: dict[str, Any], more: tuple[str, ...] = ()
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Each event is in one of the outputs, once, and in order.

        Args:
            report: The last life's report.
            more: Further topics that events may be in.

        Returns:
            Number, key and event time of what was released, late and quarantined.
        """
        assert (report["read"], report["held"]) == (self.sent, 0)
        settings = self.settings
        topics = (settings.output_topic, settings.late, settings.quarantine)
        released, late, quarantined = (_numbers(self.kafka, topic) for topic in topics)
        aside = [found for topic in more for found in _numbers(self.kafka, topic)]
        found = Counter(number for number, _, _ in (*released, *late, *quarantined, *aside))
        newest: dict[bytes | None, int] = {}
        inversions = 0
        for _, key, at in released:
            inversions += at < newest.get(key, 0)
            newest[key] = max(at, newest.get(key, 0))
        assert (self.sent - len(found), found.total() - len(found), inversions) == (0, 0, 0)
        return released, late, quarantined

    def while_it_starts(self, life: JobProcess) -> None:
        """Anywhere between the start of the JVM and the first batch, which takes the past over.

        Nothing is claimed of that moment, so a random time will do.
        """
        del life
        time.sleep(self.random.uniform(0, _STARTING_S))

    def between_steps(self, life: JobProcess) -> None:
        """When a step of this life is done, and no other has begun."""
        steps = life.steps()
        assert next(steps, None) is not None, life.complaints()
        self._kill_when(life, lambda: not self._is_in_a_step())

    def in_a_step(self, life: JobProcess) -> None:
        """When a step of this life is logged, and not marked as done yet."""
        before = self._newest("frontier")
        self._kill_when(life, lambda: self._newest("frontier") != before and self._is_logged())

    def while_rows_go_out(self, life: JobProcess) -> None:
        """When rows of a step have reached the topic, and the step is not marked as done yet."""
        reader = Consumer({**self.kafka.librdkafka(), "group.id": "kill-rounds"})
        before, counted_s = self._rows_out(reader), time.monotonic()

        def rows_of_a_step_are_out() -> bool:
            nonlocal before, counted_s
            if self._is_logged():
                return self._rows_out(reader) > before
            # Before a step hardly any go out; a count at each look would take a core.
            if time.monotonic() > counted_s + _COUNT_EVERY_S:
                before, counted_s = self._rows_out(reader), time.monotonic()
            return False

        try:
            self._kill_when(life, rows_of_a_step_are_out)
        finally:
            reader.close()

    def _kill_when(self, life: JobProcess, holds: Callable[[], bool]) -> None:
        with self._held_when(life, holds):
            os.killpg(life.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def _held_when(self, life: JobProcess, holds: Callable[[], bool]) -> Iterator[None]:
        """Hold it where it stands when something holds; for each step that is over it gets more."""
        newest = self._newest("done")
        while True:
            self._wait_for(life, functools.partial(self._holds_or_is_past, newest, holds))
            with life.held():
                if holds():
                    yield
                    return
            if self._is_past(newest):
                newest = self._newest("done")
                self.feed(ROWS_A_BATCH)

    def _holds_or_is_past(self, step: str, holds: Callable[[], bool]) -> bool:
        return holds() or self._is_past(step)

    def _is_past(self, step: str) -> bool:
        """Whether a step is over, or there are no rows of which another may come."""
        return self._newest("done") != step or self._is_settled()

    def _wait_for(self, life: JobProcess, holds: Callable[[], bool]) -> None:
        """Wait until something holds, as long as it lives."""
        deadline_s = time.monotonic() + _UP_TIMEOUT_S
        while not holds():
            assert life.process.poll() is None, life.complaints()
            assert time.monotonic() < deadline_s, "it did nothing"
            time.sleep(self.place.poll_s)

    def _life(self, *flags: str, settings: ReorderSettings | None = None) -> JobProcess:
        options = self.place.options
        way, *others = self.ways
        self.ways = (*others, way)
        settings = (settings or self.settings).model_copy(update=way)
        return SubmittedJob(self.kafka, settings, *flags, **self.job, options=options)

    def _is_logged(self) -> bool:
        """Whether a step is logged and not marked as done."""
        return self._newest("frontier") != self._newest("done")

    def _rows_out(self, reader: Consumer) -> int:
        topic = self.settings.output_topic
        partitions = reader.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        return sum(watermarks(reader, topic, partition)[1] for partition in partitions)

    def _newest(self, folder: str) -> str:
        """The newest file in a folder of the checkpoint, temporary ones left out."""
        part = self.place.sparks if folder.startswith("spark/") else self.place.ours
        return max(part.names(folder), key=int, default="")

    def _is_settled(self) -> bool:
        """Whether all that was sent is read, and nothing of it is left to write."""
        done = self._newest("done")
        totals = json.loads(self.place.ours.read(f"done/{done}"))["totals"] if done else {}
        return bool(totals.get("read", -1) == self.sent and not self._is_in_a_step())

    def _is_in_a_step(self) -> bool:
        return self._is_logged() or (self._newest("spark/offsets") != self._newest("spark/commits"))


def _numbers(kafka: KafkaSettings, topic: str) -> list[tuple[int, bytes | None, Any]]:
    """Number, key and event time of each record, but of dead letters that are no events."""
    read = [
        (json.loads(record.value or b""), record.key)
        for record in read_output(kafka, topic)
        if record.header(DEAD_COMPONENT_HEADER) is None
    ]
    return [(value["n"], key, value["at"]) for value, key in read]

"""Lives of a job with a subscription that dies by SIGKILL, and loses its checkpoint now and then.

After each death the cursors are read. What they say is acked has to be out, and must not come out
again. What was out and not acked may come again, once for each time that the checkpoint was lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import psutil

from sequitur.cli.topic_reader import read_topic
from sequitur.consumer.subscription.cursor_store import CursorStore
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.partition import SourcePartition
from tests.spark.kill_rounds import Rounds, in_turns
from tests.support.output_reading import read_output
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.stored_records import StoredSubscription
    from sequitur.kafka.settings import KafkaSettings
    from tests.spark.checkpoint_places import CheckpointPlace
    from tests.support.job_process import JobProcess

_WORKERS_END_S = PATIENCE_S
_GONE_ON_S = 1.5


class Source(NamedTuple):
    """Where an event is in the input topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Death:
    """What was known when a life was over.

    Attributes:
        moment: Name of the moment.
        cursors: The cursor of each partition.
        ends: End of each partition of the topics that the job writes.
        is_lost: Whether the checkpoint was then lost.
        acked_step: The newest step whose cursors are stored.
        done_step: The newest step that has a done mark; -1 where the folder is gone.
    """

    moment: str
    cursors: Mapping[int, Cursor]
    ends: Mapping[SourcePartition, int]
    is_lost: bool
    acked_step: int
    done_step: int

    def has_acked(self, source: Source) -> bool:
        cursor = self.cursors.get(source.partition)
        return cursor is not None and cursor.is_acked(source.offset)


class Out(NamedTuple):
    """A record that the job has written, and how many losses of the checkpoint it is behind."""

    where: SourcePartition
    offset: int
    number: int
    key: bytes | None
    at: Any
    losses: int


@dataclass(frozen=True, slots=True)
class Found:
    """What came of all lives.

    Attributes:
        out: All records in the output topics.
        twice: How many of them were out before.
        repeated: How many the subscription says came again, at most.
        late: How many of them are in the late topic.
    """

    out: list[Out]
    twice: int
    repeated: int
    late: int


@dataclass
class SubscriptionRounds(Rounds):
    """Lives of a job with a subscription.

    Attributes:
        deaths: What was known at each.
        more: Further topics that events may end in.
        has_checkpoint: Whether the next life finds one.
    """

    deaths: list[Death] = field(default_factory=list)
    more: tuple[str, ...] = ()
    has_checkpoint: bool = False

    @classmethod
    def of(
        cls,
        kafka: KafkaSettings,
        topic: str,
        checkpoint: CheckpointPlace,
        random: Random,
        *,
        job: dict[str, Any] | None = None,
        more: tuple[str, ...] = (),
    ) -> Self:
        """See `Rounds.on`; the subscription is called after the topic."""
        rounds = cls.on(kafka.bootstrap_servers, topic, checkpoint, random, job=job)
        settings = rounds.settings.model_copy(update={"subscription": f"{topic}.sub"})
        return replace(rounds, kafka=kafka, settings=settings, more=more)

    @property
    def written(self) -> tuple[str, ...]:
        settings = self.settings
        return settings.output_topic, settings.late, settings.quarantine, *self.more

    def outlive(self, rounds: int) -> dict[str, Any]:
        """So many lives, each with another end, and a last one; its report."""
        moments: list[Callable[[SubscriptionRounds, JobProcess], None]] = [
            SubscriptionRounds.while_rows_go_out,
            SubscriptionRounds.behind_a_done_mark,
            SubscriptionRounds.in_the_first_step,
            SubscriptionRounds.without_its_folder,
            SubscriptionRounds.in_a_step,
            SubscriptionRounds.behind_the_claim,
            SubscriptionRounds.at_any_time,
            SubscriptionRounds.between_steps,
            SubscriptionRounds.behind_a_done_mark,
            SubscriptionRounds.while_it_starts,
        ]
        for moment, ways in itertools.islice(in_turns(moments, self.ways), rounds):
            self.ways = ways
            self.live_and_lose(moment)
        return self.finish()

    def live_and_lose(self, moment: Callable[[SubscriptionRounds, JobProcess], None]) -> None:
        """One life: events come, it is killed at the moment, and may lose its checkpoint."""
        with self._life() as life:
            self.feed()
            if moment in _IN_LATER_STEPS:
                self._see_steps(life, self.random.randrange(3))
            moment(self, life)
            self._end(life)
        done = self._newest("done")
        folder = Path(self.settings.checkpoint)
        is_whole = (folder / "subscription.json").exists()
        self.cut_short += self._is_logged() or not is_whole
        stored = self._stored()
        # The first is lost, later each third is kept; of one deleted under the job nothing is.
        is_lost = not is_whole or not self.deaths or self.random.random() < 2 / 3
        if is_lost:
            shutil.rmtree(folder, ignore_errors=True)
        self.has_checkpoint = not is_lost
        self.deaths.append(
            Death(
                moment.__name__,
                {}
                if stored is None
                else {where.partition: one.cursor for where, one in stored.cursors.items()},
                self._ends(),
                is_lost,
                -1 if stored is None else stored.state.step,
                int(done) if done else -1,
            )
        )

    def behind_a_done_mark(self, life: JobProcess) -> None:
        """When a step has just been marked as done: most likely before its cursors are written."""
        newest = self._newest("done")
        self._kill_when(life, lambda: self._newest("done") != newest)

    def behind_the_claim(self, life: JobProcess) -> None:
        """When a life without a checkpoint has claimed the subscription, and begun no step yet."""
        if self.has_checkpoint:
            self.in_a_step(life)
            return
        claimed = Path(self.settings.checkpoint, "subscription.json")
        self._kill_when(life, claimed.exists)

    def in_the_first_step(self, life: JobProcess) -> None:
        if self.has_checkpoint:
            self.in_a_step(life)
            return
        self._kill_when(life, lambda: self._newest("staged") != "" and self._newest("done") == "")

    def without_its_folder(self, life: JobProcess) -> None:
        """When its folder was deleted while it was at work, a moment ago."""
        self._see_steps(life, 1 + self.random.randrange(3))
        self.feed()
        time.sleep(self.random.uniform(0, _GONE_ON_S))
        for _ in range(2):  # what it writes meanwhile is in the way of the first
            shutil.rmtree(self.settings.checkpoint, ignore_errors=True)
        time.sleep(self.random.uniform(0, _GONE_ON_S))

    def at_any_time(self, life: JobProcess) -> None:
        self._see_steps(life, 1)
        self.feed()
        time.sleep(self.random.uniform(0, _GONE_ON_S))

    def account(self, report: Mapping[str, Any]) -> Found:
        """Check what all lives have written against what was acked at each death.

        Args:
            report: The last life's report.
        """
        assert report["held"] == 0
        sources, out = self._sources(), self._out()
        assert len(sources) == self.sent
        numbers = Counter(one.number for one in out)
        assert sources.keys() == numbers.keys()
        self._check_acked(sources, out)
        # Without a loss of the checkpoint between them, no event comes twice.
        places = Counter((one.number, one.losses) for one in out)
        assert [place for place, times in places.items() if times > 1] == []
        assert self._inversions(sources, out) == []
        twice, stored = len(out) - len(numbers), self._stored()
        assert stored is not None
        assert twice <= stored.state.repeated
        for where, end in self._input_ends().items():
            assert stored.cursors[where].cursor.committed_offset == end
        late = sum(one.where.topic == self.settings.late for one in out)
        return Found(out, twice, stored.state.repeated, late)

    def _check_acked(self, sources: Mapping[int, Source], out: Iterable[Out]) -> None:
        """What is acked at a death is out by then, and never comes again."""
        before: list[set[int]] = [set() for _ in self.deaths]
        behind: list[set[int]] = [set() for _ in self.deaths]
        for one in out:
            for number, death in enumerate(self.deaths):
                is_before = one.offset < death.ends.get(one.where, 0)
                (before if is_before else behind)[number].add(one.number)
        for number, death in enumerate(self.deaths):
            acked = {one for one, source in sources.items() if death.has_acked(source)}
            assert sorted(acked & behind[number])[:5] == [], f"acked at {death.moment}, and again"
            assert sorted(acked - before[number])[:5] == [], f"acked at {death.moment}, not out"

    def _inversions(self, sources: Mapping[int, Source], out: Iterable[Out]) -> list[Out]:
        """Return the released events that are older than what their key's acked ones were."""
        newest: dict[tuple[bytes | None, int], int] = defaultdict(lambda: -1)
        found = []
        lost = [death for death in self.deaths if death.is_lost]
        for one in out:
            if one.where.topic != self.settings.output_topic:
                continue
            if one.at < newest[one.key, one.losses]:
                found.append(one)
            # What is out and not acked at a loss comes again: behind that it counts for nothing.
            for losses in range(one.losses, len(lost) + 1):
                if losses == one.losses or lost[losses - 1].has_acked(sources[one.number]):
                    place = one.key, losses
                    newest[place] = max(newest[place], one.at)
                else:
                    break
        return found

    def _sources(self) -> dict[int, Source]:
        records = read_topic(self.kafka, self.settings.input_topics[0])
        return {
            json.loads(one.value or b"")["n"]: Source(one.partition, one.offset) for one in records
        }

    def _out(self) -> list[Out]:
        lost = [death.ends for death in self.deaths if death.is_lost]
        found = []
        for topic in self.written:
            for one in read_output(self.kafka, topic):
                value, where = json.loads(one.value or b""), SourcePartition(topic, one.partition)
                losses = sum(one.offset >= ends.get(where, 0) for ends in lost)
                found.append(Out(where, one.offset, value["n"], one.key, value["at"], losses))
        return found

    def _stored(self) -> StoredSubscription | None:
        assert self.settings.subscription is not None
        return CursorStore(self.kafka).read(self.settings.subscription)

    def _ends(self) -> dict[SourcePartition, int]:
        """End of each partition of the topics that the job writes, those that are there."""
        return self._ends_of(self.written)

    def _input_ends(self) -> dict[SourcePartition, int]:
        return self._ends_of(self.settings.input_topics)

    def _ends_of(self, names: Iterable[str]) -> dict[SourcePartition, int]:
        topics = KafkaTopics(self.kafka)
        there = [
            SourcePartition(name, partition)
            for name in names
            for partition in range(topics.partitions(name) or 0)
        ]
        return topics.high_watermarks(there) if there else {}

    def _see_steps(self, life: JobProcess, steps: int) -> None:
        """Wait until it has done so many steps."""
        for _ in itertools.islice(life.steps(), steps):
            pass
        assert life.process.poll() is None, life.complaints()

    def _kill_when(self, life: JobProcess, holds: Callable[[], bool]) -> None:
        with self._held_when(life, holds):
            self._end(life)

    def _end(self, life: JobProcess) -> None:
        """Kill it, and wait until its Python workers are gone, which may be writing yet."""
        workers = []
        with contextlib.suppress(psutil.NoSuchProcess):
            workers = psutil.Process(life.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(life.pid, signal.SIGKILL)
        life.process.wait()
        _, alive = psutil.wait_procs(workers, timeout=_WORKERS_END_S)
        assert alive == []


_IN_LATER_STEPS = (
    SubscriptionRounds.while_rows_go_out,
    SubscriptionRounds.behind_a_done_mark,
    SubscriptionRounds.in_a_step,
)
"""Moments of which the first steps of a life are not the only ones."""

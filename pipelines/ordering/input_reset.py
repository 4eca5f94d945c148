"""Steps after which Spark's part begins again: where the log has got to, or behind lost rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import StepKind
from sequitur.pipelines.ordering.data_loss import lost_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sequitur.pipelines.kafka.topics import KafkaTopics
    from sequitur.pipelines.ordering.data_loss import Lost
    from sequitur.pipelines.ordering.input_checks import InputChecks
    from sequitur.pipelines.ordering.input_offsets import InputOffsets
    from sequitur.pipelines.ordering.newest_step import NewestStep
    from sequitur.pipelines.ordering.step_runner import StepRunner
    from sequitur.pipelines.ordering.steps import Steps
    from sequitur.pipelines.store.checkpoint import Checkpoint


class InputReset:
    """Resets Spark's part; whoever calls it holds the engine's lock.

    Args:
        checkpoint: The job's folder.
        newest: The newest step.
        steps: Works out what a step decides.
        runner: Runs steps.
        checks: Holds the input against the log.
        offsets: Asks for the input's offsets.
        topics: Admin client.
        now_ms: The wall clock.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        newest: NewestStep,
        steps: Steps,
        runner: StepRunner,
        *,
        checks: InputChecks,
        offsets: InputOffsets,
        topics: KafkaTopics,
        now_ms: Callable[[], int],
    ) -> None:
        self._checkpoint = checkpoint
        self._newest = newest
        self._steps = steps
        self._runner = runner
        self._checks = checks
        self._offsets = offsets
        self._topics = topics
        self._now_ms = now_ms

    def reset(self, wait: Callable[[float], bool]) -> None:
        """Have Spark's part begin again where the log has got to; see `ReorderEngine.reset_input`.

        Args:
            wait: Waits for so many seconds; whether it is to be given up.

        Raises:
            StopRequestedError: It was given up, and nothing is reset.
            TopicError: The brokers do not answer.
        """
        entry = self._newest.entry
        if entry is None:
            self._checkpoint.spark.drop(self._newest.source)  # nothing of it is in the log
            return
        if not self._newest.is_done:
            self._runner.finish(entry)  # its batch is staged, so Spark need not give it again
        ids = self._topics.ids(entry.topics)
        recreated = {
            topic for topic, known in entry.topics.items() if ids.get(topic, known) != known
        }
        self._runner.is_resetting = True
        if recreated and entry.live_runs:
            self._runner.begin()
            clock = entry.clock.drain()
            self._runner.run_quiet(StepKind.DRAIN, entry, clock, self._now_ms())
        while recreated and self._runner.try_again(wait):
            pass
        # The drain and the attempts have moved the frontier: the reset goes on from there.
        newest = self._newest.entry
        assert newest is not None  # steps are added, and never taken away
        self._runner.begin()
        clock, topics = newest.clock.without(recreated), {**newest.topics, **ids}
        self._runner.run(self._steps.reset(newest, clock, topics, {}))
        self._runner.is_resetting = False

    def lost(self, topics: Mapping[str, int]) -> Lost:
        """Return what the input has lost that was never read; see `ReorderEngine.lost`.

        Args:
            topics: The input topics that are there, and how many partitions each has.

        Raises:
            CheckpointError: A topic has been deleted and recreated.
            TopicError: The brokers do not answer.
        """
        entry = self._newest.entry
        if entry is None:
            # Only where the first batch is planned already is there anything to lose.
            planned = self._checkpoint.spark.first_offsets(self._newest.source)
            return self._offsets.lost_of_plan(topics, planned)
        # Of a topic that was recreated nothing is lost that can be told by offsets.
        self._checks.topic_ids(entry, entry.topics)
        return self._offsets.lost(topics, entry.clock)

    def pass_over_lost(self, topics: Mapping[str, int]) -> Lost:
        """Have Spark's part begin again behind lost rows; see `ReorderEngine.pass_over_lost`.

        Args:
            topics: The input topics that are there, and how many partitions each has.

        Raises:
            TopicError: The brokers do not answer.
            SinkError: The newest step was not done, and cannot be written.
        """
        entry = self._newest.entry
        if entry is None:
            raise RuntimeError("nothing was read yet")
        if not self._newest.is_done:
            self._runner.finish(entry)  # its batch is staged, so Spark need not give it again
        first = self._offsets.first(topics)
        lost = lost_offsets(entry.clock, first)
        there = {topic: known for topic, known in entry.topics.items() if topic in topics}
        there |= self._topics.ids(topic for topic in topics if topic not in there)
        clock = entry.clock.passed_over(first, now_ms=self._now_ms())
        self._runner.begin()
        self._runner.run(self._steps.reset(entry, clock, there, lost))
        return lost

"""Settings of the process job: the section `[process]`."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from sequitur.base.settings import Section
from sequitur.base.units import Duration, Size, milliseconds
from sequitur.consumer.topology.engine.plan import Ordering, Rules
from sequitur.consumer.topology.settling.outcomes import RetryPolicy
from sequitur.kafka.settings import Topic


class Outputs(StrEnum):
    """When the outputs of a tree are written."""

    FINISHED = "finished"
    """Once the whole tree is acked, so each output is there once."""
    IMMEDIATE = "immediate"
    """At once, even if the tree fails. A tree that is tried again writes its outputs again."""


class ProcessSettings(Section):
    """How the process job runs a topology.

    ::

        settings = ProcessSettings(max_attempts=3, retry_delay="1 s")
    """

    title = "Topology"
    former: ClassVar = {"message_timeout": "call_timeout"}
    panels: ClassVar = {
        "Retries": (
            *("retry_delay", "retry_factor", "retry_maximum", "retry_jitter"),
            *("max_attempts", "max_crashes", "dead_letter_topic"),
        ),
    }

    ackers: int | None = Field(
        default=None,
        ge=0,
        description="Tasks that track tuple trees. Default: as many as the ordered stream has "
        "partitions. 0: no tracking. Each event is acked at once, as with Storm's "
        "topology.acker.executors: 0",
    )
    call_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="A bolt's call that takes longer fails",
    )
    ordering: Ordering = Field(
        default=Ordering.KEY,
        description="key: a failed event blocks later events of its key until it is acked or "
        "dead-lettered. none: it blocks nothing",
    )
    retry_delay: Duration = Field(
        default=timedelta(milliseconds=100), description="Time before the second attempt"
    )
    retry_factor: float = Field(
        default=2.0,
        ge=1,
        allow_inf_nan=False,
        description="Each further delay is the delay before, times this",
    )
    retry_maximum: Duration = Field(
        default=timedelta(minutes=1), description="The longest delay between two attempts"
    )
    retry_jitter: float = Field(
        default=0.2, ge=0, le=1, description="A delay is up to this share shorter or longer"
    )
    max_attempts: int = Field(
        default=5,
        ge=0,
        description="After this many attempts an event is dead-lettered. 0: never, unless it "
        "kills its process",
    )
    max_crashes: int = Field(
        default=2,
        ge=1,
        description="When a task's process has died this often on the same events, the job "
        "finds the event that kills it and dead-letters it",
    )
    max_pending: int = Field(
        default=100_000,
        ge=1,
        description="Stop reading new events while this many wait for a retry or for an earlier "
        "event of their key",
    )
    max_spout_pending: int | None = Field(
        default=None,
        ge=1,
        description="Most tuple trees in flight. Default: those of a batch",
    )
    max_batches_pending: int = Field(
        default=1,
        ge=1,
        description="Transactional topology: how many batches are in work at a time. Later ones "
        "are processed while the first is committed and written",
    )
    state_memory: Size = Field(
        default=512 << 20,
        gt=0,
        description="Keyed bolts: memory of a host for keys used lately. Others are in files",
    )
    sqlite_on_one_host: bool = Field(
        default=False,
        description="Transactional topology on a cluster: driver and all executors run on one "
        "host, so its states may be in SQLite",
    )
    outputs: Outputs = Field(
        default=Outputs.FINISHED,
        description="When the outputs of a tree are written. finished: once the tree is acked. "
        "immediate: at once, even if the tree fails",
    )
    dead_letter_topic: Topic | None = Field(
        default=None,
        description="Topic for dead letters. Default: reorder.output_topic + .dead-letter",
    )

    @property
    def rules(self) -> Rules:
        return Rules(
            call_timeout_s=milliseconds(self.call_timeout) / 1000,
            ordering=self.ordering,
            retry=self.retry,
            max_spout_pending=self.max_spout_pending,
        )

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(
            delay_ms=milliseconds(self.retry_delay),
            factor=self.retry_factor,
            maximum_ms=milliseconds(self.retry_maximum),
            jitter=self.retry_jitter,
            max_attempts=self.max_attempts,
        )

    def why_not_transactional(self, *, is_keyed: bool = False) -> str | None:
        """Return which setting does not go with transactions, and why; None if all do.

        Args:
            is_keyed: Whether there are keyed bolts.
        """
        if self.outputs is Outputs.IMMEDIATE:
            return 'outputs = "immediate": what a batch emits goes out once it is committed'
        if self.ackers == 0:
            return "ackers = 0: a batch is committed once it is known what failed of it"
        if self.max_spout_pending is not None:
            return (
                f"max_spout_pending = {self.max_spout_pending}: a batch is one transaction. "
                "max_batches_pending limits those"
            )
        if is_keyed and self.max_batches_pending > 1:
            return (
                f"max_batches_pending = {self.max_batches_pending}: a batch of keyed bolts begins "
                "with what the batch before has committed"
            )
        return None

    def why_not_keyed(self, *, by_field: bool = False) -> str | None:
        """Return which setting does not go with keyed bolts; None if all do.

        Args:
            by_field: Whether some are keyed by another field than the events' key.
        """
        if by_field and self.max_spout_pending is not None:
            # Waves of partitions are not in the order of times.
            return f"max_spout_pending = {self.max_spout_pending}"
        if self.ackers == 0:
            return "ackers = 0"
        if self.ordering is Ordering.NONE:
            return f'ordering = "{self.ordering}"'
        return None

    def dead_letters(self, output_topic: str) -> str:
        return self.dead_letter_topic or f"{output_topic}.dead-letter"

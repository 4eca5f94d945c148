"""Checks again and again, by one process of an installation at a time.

A backlog grows when the job is down, so the checks also run beside it: in `sequitur subscription
maintain`, and in each job. A consumer group on the topic of the registry decides who makes them.
That topic has one partition, and the process that it is assigned to makes the checks. If this
process dies, the partition goes to another. A process that was cut off and goes on has lost the
transactional id of the backlog states, and stops.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import Consumer

from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.checks import VALID_FOR_MS, CheckRound, Checks
from sequitur.consumer.subscription.duty import Duty
from sequitur.errors import (
    ConsumerError,
    SubscriptionFencedError,
    UnansweredError,
)
from sequitur.kafka.control import control_topic
from sequitur.kafka.settings import system_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import TopicPartition

    from sequitur.kafka.settings import KafkaSettings


INTERVAL_S: Final = 1.0
"""Producers must learn about a backlog within two seconds."""
_POLL_S: Final = 0.2
_SESSION_MS: Final = 10_000
_LONGEST_ROUND_MS: Final = 600_000
_STALE_AFTER_ROUNDS: Final = 10


class LedChecks:
    """The checks of one process. They begin when it leads, and close when it stops leading."""

    def __init__(self, make: Callable[[], Checks]) -> None:
        self._make = make
        self._checks: Checks | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> CheckRound:
        """Make one round, as the process that leads; see `Checks.run`.

        After an error the next round makes new ones: the process that leads goes on, and brokers
        that were away come back.
        """
        if self._checks is None:
            self._checks = self._make()
        try:
            return self._checks.run()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the checks. The next `run` makes new ones."""
        if self._checks is not None:
            self._checks.close()
            self._checks = None


class Leadership:
    """A place in the consumer group of processes that can make the checks. One member leads."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._leads = threading.Event()
        self._consumer = Consumer(
            {
                **kafka.librdkafka(),
                "group.id": checks_group(kafka),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _SESSION_MS // 5,
                "max.poll.interval.ms": _LONGEST_ROUND_MS,
                "allow.auto.create.topics": False,
            }
        )
        self._consumer.subscribe(
            [control_topic(kafka)],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._revoked,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def leads(self) -> bool:
        return self._leads.is_set()

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Return whether this process leads now. The caller repeats this to stay in the group."""
        self._consumer.poll(timeout_s)  # reads no records; callbacks run here
        return self.leads

    def close(self) -> None:
        """Leave the group, so that another process can make the checks at once."""
        self._leads.clear()
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)
        if partitions:
            self._leads.set()

    def _revoked(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._leads.clear()
        consumer.unassign()


def checks_group(kafka: KafkaSettings) -> str:
    """Return the group that elects the process for an installation's checks."""
    return system_name(kafka, "subscription-checks")


def watch(
    kafka: KafkaSettings,
    *,
    tell: Callable[[CheckRound], object],
    stop: Callable[[], bool] = bool,
    interval_s: float = INTERVAL_S,
    copy_to: str | None = None,
    replication_factor: int = -1,
    dry_run: bool = False,
    warn: Callable[[str], object] = len,
    **options: Any,
) -> None:
    surveyor = Surveyor(kafka, replication_factor=replication_factor)
    surveyor.registry.ensure()
    options.setdefault(
        "valid_for_ms", max(VALID_FOR_MS, int(interval_s * 1000 * _STALE_AFTER_ROUNDS))
    )
    with (
        Leadership(kafka) as leadership,
        LedChecks(lambda: Checks(surveyor, copy_to=copy_to, dry_run=dry_run, **options)) as checks,
    ):
        round_ = Duty(
            lambda: tell(checks.run()),
            every_s=interval_s,
            # Findings about a newer version's records come until this version is replaced.
            passes=(SubscriptionFencedError, UnansweredError, ConsumerError),
            tell=lambda error: warn(str(error)),
        )
        while not stop():
            if leadership.poll(_POLL_S):
                round_.run()
            else:
                checks.close()

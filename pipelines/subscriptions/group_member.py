"""Commits a consumer group's offsets, as its static member or from outside.

A member reads nothing. Kafka's tools show by it that somebody processes the topics, and who; an
older life under the same instance id gets FENCED_INSTANCE_ID with its next heartbeat or commit.
From outside, offsets are committed while the group has no member: Kafka refuses it otherwise.

Commits are made beside the work, the newest offsets only: they are for Kafka's tools, and nothing
that has to be right is read from them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaException

from sequitur.producer.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from confluent_kafka import KafkaError, TopicPartition

    from sequitur.producer import KafkaSettings

_POLL_S: Final = 0.1
_PAUSE_S: Final = 1.0
"""Between two commits that fail."""
_SESSION_MS: Final = 10_000
"""So long a subscription counts as connected once its process was killed."""
_CLOSE_S: Final = 20.0
"""A cluster's first group waits so long, or nearly, for the topic that groups are kept in."""


class GroupMember:
    """Whoever commits a group's offsets; a member of the group if it joins it.

    Args:
        kafka: How to reach the brokers.
        group: Name of the group.
        topics: Joins the group for these; without any it is no member.
        instance: The instance id of the member.

    Attributes:
        is_fenced: Whether another member has taken its place.
    """

    def __init__(
        self, kafka: KafkaSettings, group: str, topics: Sequence[str], *, instance: str
    ) -> None:
        options = {
            **kafka.librdkafka(),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "session.timeout.ms": _SESSION_MS,
            "heartbeat.interval.ms": _SESSION_MS // 5,
        }
        self.is_fenced = False
        self._waiting: dict[tuple[str, int], TopicPartition] = {}
        self._lock = threading.Lock()
        self._ends = threading.Event()
        # Before it has joined, Kafka takes it for another one with the same instance id.
        self._is_member = bool(topics)
        self._may_commit = not topics
        self._not_before_s = 0.0
        if topics:
            self._consumer = Consumer({**options, "group.instance.id": instance})
            self._consumer.subscribe(
                list(topics), on_assign=self._join, on_revoke=self._leave, on_lost=self._leave
            )
        else:
            self._consumer = Consumer(options)
        # The only one that uses the consumer: a call beside `poll` would wait for a rebalance that
        # waits for Python's lock, which the call holds.
        self._thread = threading.Thread(target=self._run, name="group-member", daemon=True)
        self._thread.start()

    def commit(self, offsets: Iterable[TopicPartition]) -> None:
        """Have offsets committed, soon; newer ones of a partition replace those that wait."""
        with self._lock:
            self._waiting |= {(one.topic, one.partition): one for one in offsets}

    def close(self) -> None:
        """Commit what waits, if that takes no longer than 20 s, and stop heartbeats.

        A static member stays in the group until its session times out.
        """
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set() and not self.is_fenced:
            self._poll()
            if time.monotonic() >= self._not_before_s:
                self._commit_waiting()
        deadline_s = time.monotonic() + _CLOSE_S
        while self._waiting and not self.is_fenced and time.monotonic() < deadline_s:
            self._commit_waiting()
            if self._waiting:
                self._poll()
        with contextlib.suppress(KafkaException):  # one that is fenced says so once more
            self._consumer.close()

    def _poll(self) -> None:
        if not self._is_member:
            time.sleep(_POLL_S)
            return
        message = self._consumer.poll(_POLL_S)
        error = None if message is None else message.error()
        if error is not None and _is_fencing(error):
            self.is_fenced = True

    def _commit_waiting(self) -> None:
        if not self._may_commit:
            return
        with self._lock:
            offsets, self._waiting = self._waiting, {}
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=list(offsets.values()), asynchronous=False)
        except KafkaException as error:
            if _is_fencing(error.args[0]):
                self.is_fenced = True
            self._not_before_s = time.monotonic() + _PAUSE_S
            with self._lock:
                self._waiting = {**offsets, **self._waiting}

    def _join(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)
        self._may_commit = True

    def _leave(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._may_commit = False


def _is_fencing(error: KafkaError) -> bool:
    return action_of(Request.MEMBER, error.code()) is Action.FENCED

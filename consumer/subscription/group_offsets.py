"""Sets a consumer group's offsets, for Kafka's own tools: the lag that they show is then right.

Nobody is a member of the group. Only the newest offsets are set, after the write of the cursors
that they belong to. They are set again each day, since brokers forget the offsets of a group
without members after a week. A group that has members belongs to somebody else, and its offsets are
refused. Nothing that has to be right is read from them, so a refusal is told, and the work goes
on.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sequitur.errors import (
    ReorderError,
    SubscriptionFencedError,
)
from sequitur.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import KafkaError, Message

    from sequitur.kafka.settings import KafkaSettings


_POLL_S: Final = 0.1
_PAUSE_S: Final = 1.0
"""The pause between two failed attempts."""
_KEPT_MS: Final = 3_000
_AGAIN_S: Final = 86_400.0
_TOLD_EACH_S: Final = 3_600.0
CLOSE_S: Final = 20.0
"""A cluster's first group waits nearly so long for the topic of groups."""


class GroupOffsets:
    """The offsets that a group is to have.

    `PartitionReader` sends them in an open `Subscription`, else `OwnersThread`.
    """

    def __init__(
        self, tell: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._lock = threading.Lock()
        self._all: dict[tuple[str, int], TopicPartition] = {}
        self._waiting: dict[tuple[str, int], TopicPartition] = {}
        self._sent: dict[tuple[str, int], TopicPartition] = {}
        self._not_before_s = 0.0
        self._is_refused = self._is_hidden = False
        self._told_s: float | None = None
        self._all_since_s = clock()

    def consumer(
        self, kafka: KafkaSettings, group: str, options: Mapping[str, object] | None = None
    ) -> Consumer:
        """Return a consumer that may send the offsets. It is not a member of the group."""
        return Consumer(
            {
                **kafka.librdkafka(),
                "group.id": group,
                "on_commit": self.answered,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # librdkafka keeps sent offsets for so long while the group has no coordinator, or a
                # hidden one. A close waits for that.
                "session.timeout.ms": _KEPT_MS,
                **(options or {}),
            }
        )

    @property
    def is_settled(self) -> bool:
        """Whether the group has all offsets or refuses the newest. Waiting changes neither."""
        with self._lock:
            is_open = self._sent or (self._waiting and not self._is_refused)
            return self._is_hidden or not is_open

    def set(self, offsets: Iterable[TopicPartition]) -> None:
        """Set offsets soon. Newer ones replace a partition's waiting ones."""
        with self._lock:
            newest = {(one.topic, one.partition): one for one in offsets}
            self._is_refused = self._is_refused and not newest
            self._waiting |= newest
            self._all |= newest

    def forget(self) -> None:
        """Set no more offsets: another process has the subscription."""
        with self._lock:
            self._all, self._waiting = {}, {}

    def send(self, consumer: Consumer) -> None:
        """Send what waits, unless an answer is outstanding. The answer comes to `answered`."""
        if due := self.due():
            try:
                consumer.commit(offsets=due, asynchronous=True)
            except KafkaException as error:
                self.answered(error.args[0], due)

    def work(self, consumer: Consumer) -> None:
        """Send what waits, and poll the consumer for a moment."""
        self.send(consumer)
        if (message := consumer.poll(_POLL_S)) is not None:
            self.hides(message)

    def settle(self, consumer: Consumer) -> None:
        """Wait at most `CLOSE_S` until the group has its offsets or refuses them."""
        deadline_s = time.monotonic() + CLOSE_S
        while not self.is_settled and time.monotonic() < deadline_s:
            self.work(consumer)

    def due(self) -> list[TopicPartition]:
        now_s = self._clock()
        with self._lock:
            if now_s - self._all_since_s >= _AGAIN_S:
                self._waiting, self._all_since_s = dict(self._all), now_s
            if self._sent or now_s < self._not_before_s:
                return []
            self._sent, self._waiting = self._waiting, {}
            return list(self._sent.values())

    def answered(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """Take the answer to a commit: librdkafka's `on_commit`."""
        error = error or next((one.error for one in offsets if one.error is not None), None)
        now_s = self._clock()
        with self._lock:
            sent, self._sent = self._sent, {}
            if error is None:
                self._is_refused = self._is_hidden = False
                return
            passes = action_of(Request.GROUPS, error.code()).is_waited_for
            self._is_refused = not passes and not self._waiting
            again = {where: one for where, one in sent.items() if where in self._all}
            self._waiting = {**again, **self._waiting}
            self._not_before_s = now_s + _PAUSE_S
        if not passes:
            self._tell_refusal(error, now_s)

    def hides(self, message: Message) -> bool:
        """Tell whether a consumer says that its group may not be seen, and take note of it.

        It says so once; what was sent has no answer until librdkafka gives it up.
        """
        error = message.error()
        if error is None or message.topic() is not None:
            return False
        if action_of(Request.POSITION, error.code()) is not Action.GO_WITHOUT:
            return False
        with self._lock:
            self._is_hidden = True
        self._tell_refusal(error, self._clock())
        return True

    def _tell_refusal(self, error: KafkaError, now_s: float) -> None:
        with self._lock:
            if self._told_s is not None and now_s - self._told_s < _TOLD_EACH_S:
                return
            self._told_s = now_s
        self._tell(
            f"the consumer group's offsets are not set, and will be tried again: {error.str()}. "
            "A group that has other members refuses them. Acks are stored all the same"
        )


class OwnersThread:
    """Sends a group's offsets, and renews what the owner of a subscription holds."""

    def __init__(
        self,
        kafka: KafkaSettings,
        group: str,
        offsets: GroupOffsets,
        renew: Callable[[], object],
        tell: Callable[[str], object],
    ) -> None:
        self._offsets = offsets
        self._renew = renew
        self._tell = tell
        self._ends = threading.Event()
        self._consumer = offsets.consumer(kafka, group)
        self._thread = threading.Thread(target=self._run, name="subscription-owner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End once the group has its offsets or refuses them, after at most 20 s."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        renews_s = 0.0
        while not self._ends.is_set():
            self._offsets.work(self._consumer)
            if time.monotonic() < renews_s:
                continue
            try:
                self._renew()
            except SubscriptionFencedError:  # the next write raises it
                renews_s = math.inf
            except ReorderError as error:
                renews_s = time.monotonic() + _PAUSE_S
                self._tell(str(error))
        self._offsets.settle(self._consumer)
        with contextlib.suppress(KafkaException):
            self._consumer.close()

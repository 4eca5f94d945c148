"""Owners of a subscription after each other, on a topic in memory: who may write, and what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sequitur.base.retry import Outages
from sequitur.consumer.subscription import cursor_store
from sequitur.consumer.subscription.claims import HeldLease
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_store import CursorOwner
from sequitur.consumer.subscription.group_offsets import GroupOffsets
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.stored_records import StoredRecords
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import SubscriptionFencedError, UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.consumer.subscription.fenced_writer import TopicWrite

_LONG_S = 60.0


class _Topic:
    """The compacted topic, and the transactional id: whoever made the newest writer has it."""

    name = "cursors"
    partition = 0

    def __init__(self) -> None:
        self.found: dict[bytes, bytes] = {}
        self.writers: list[_Writer] = []
        self.before_write: Callable[[], None] = lambda: None

    def read(self, _partition: int = 0) -> dict[bytes, bytes]:
        return dict(self.found)

    @property
    def records(self) -> StoredRecords:
        return StoredRecords(self.read())

    def take(self) -> CursorOwner:
        return CursorOwner(
            KafkaSettings(bootstrap_servers="unused:1"),
            self,  # type: ignore[arg-type]  # stands for it
            lambda: self,  # type: ignore[arg-type,return-value]  # likewise
            self.partition,
            "s",
            followed=None,
            lease=HeldLease(0),
            watch=None,
            offsets=GroupOffsets(len),
            to_remove=False,
            outages=Outages(_LONG_S, 0, wait=lambda _s: False, tell=len),
        )


class _Writer:
    """Stands for `FencedWriter`."""

    def __init__(self, topic: _Topic) -> None:
        self._topic = topic
        self.is_over = False
        topic.writers.append(self)

    def write(self, records: Sequence[TopicWrite], _outages: Outages | None = None) -> None:
        before, self._topic.before_write = self._topic.before_write, lambda: None
        self.is_over = True
        before()
        if self._topic.writers[-1] is not self:
            raise SubscriptionFencedError("another one has the id")
        self.is_over = False
        for one in records:
            if one.value is None:
                self._topic.found.pop(one.key, None)
            else:
                self._topic.found[one.key] = one.value

    def close(self) -> None:
        pass


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> _Topic:
    made = _Topic()

    def writer(*_args: Any, **_options: Any) -> _Writer:
        return _Writer(made)

    monkeypatch.setattr(cursor_store, "FencedWriter", writer)
    return made


def _write(owner: CursorOwner, step: int, *acked: int) -> None:
    cursor = Cursor(CursorIdentity("s", "t", 0))
    cursor.ack_offsets(np.array(acked, np.int64), end=100)
    owner.write(SubscriptionState(step=step), [PartitionCursor(cursor)])


def _stored(topic: _Topic) -> tuple[int, int]:
    """The step of the state, and up to where all is acked."""
    found = topic.records.subscription("s")
    assert found is not None
    cursor = found.cursors[SourcePartition("t", 0)].cursor
    return found.state.step, cursor.committed_offset


def test_an_owner_that_was_told_of_its_successor_leaves_that_one_the_id(topic: _Topic) -> None:
    """To take it back would end a write of the successor's that is under way."""
    first = topic.take()
    _write(first, 1, 0)
    second = topic.take()
    for _ in range(3):
        with pytest.raises(SubscriptionFencedError, match="taken over"):
            _write(first, 2, 0, 1)
    assert len(topic.writers) == 2
    _write(second, 3, 0, 1, 2)
    assert len(topic.writers) == 2
    assert _stored(topic) == (3, 3)


def test_who_makes_a_new_client_looks_first_whether_it_was_taken_over(topic: _Topic) -> None:
    """By the id alone it would be the owner again, and write older acks over newer ones."""
    first = topic.take()
    _write(first, 1, 0)

    def taken_over() -> None:
        _write(topic.take(), 5, 0, 1, 2)
        raise UnansweredError("the answer was lost")

    topic.before_write = taken_over
    with pytest.raises(SubscriptionFencedError, match="taken over"):
        _write(first, 2, 0, 1)
    assert _stored(topic) == (5, 3)


def test_writings_are_counted_over_all_owners(topic: _Topic) -> None:
    """Of two records that are stored of a cursor the count tells which is newer."""
    for number in range(3):
        _write(topic.take(), number, 0)
        assert topic.records.newest_generation("s") == number

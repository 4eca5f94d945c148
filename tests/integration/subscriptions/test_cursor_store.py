"""Cursors in a compacted topic and in a group's offsets, on a real broker."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
    OffsetSpec,
)

from sequitur.base.process import ProcessIdentity
from sequitur.base.retry import Outages
from sequitur.consumer.subscription import fenced_writer
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.claims import HeldLease, Hold, await_free
from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_store import (
    CursorStore,
    cursor_topic,
    transactional_id,
)
from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.registry import (
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.registry_store import RegistryStore
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import (
    SubscriptionConnectedError,
    SubscriptionError,
    SubscriptionFencedError,
    UnansweredError,
)
from sequitur.kafka.partition import SourcePartition
from sequitur.producer import KafkaSettings
from tests.support.cursors import state_of
from tests.support.open_subscriptions import group_commit
from tests.support.subscribed_topics import SHORT_LEASE_S
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import MakeBroker

_TIMEOUT_S = PATIENCE_S


def _cursor(name: str, topic: str, partition: int, *offsets: int, end: int = 1 << 20) -> Cursor:
    cursor = Cursor(CursorIdentity(name, topic, partition))
    cursor.ack_offsets(np.array(offsets, np.int64), end=end)
    return cursor


def _committed(
    kafka: KafkaSettings, subscription: str, topic: str, partition: int
) -> tuple[int, str]:
    found = group_commit(kafka, group_of_new(kafka, subscription), topic, partition)
    return found.offset, found.metadata or ""


@pytest.mark.promise("sub-job-subscription-work")
def test_what_is_written_is_read_back(kafka: KafkaSettings, name: str, topic: str) -> None:
    """State, cursors and sizes are read as they were written; Kafka's tools show the offset."""
    store = CursorStore(kafka)
    assert store.read(name) is None
    state = SubscriptionState(epoch=2, checkpoint="c1", step=7, frontier_ms=99, transaction=4)
    sizes = CountedSizes().read(20, 3072)
    cursor = _cursor(name, topic, 1, 0, 1, 2, 3, 5, 6)
    with store.take(name) as owner:
        assert owner.stored is None
        owner.write(state, [PartitionCursor(cursor, sizes)])
        wait_until(lambda: _committed(kafka, name, topic, 1)[0] == 4)
    found = store.read(name)
    assert found is not None
    assert found.state == state
    where = SourcePartition(topic, 1)
    assert list(found.cursors) == [where]
    assert state_of(found.cursors[where].cursor) == state_of(cursor)
    assert found.cursors[where].sizes == sizes
    assert _committed(kafka, name, topic, 1)[1].startswith("sequitur-cursor/1 whole ")
    assert store.read_all([name]).stored[name].state == state


@pytest.mark.promise("sub-cursor-larger-096")
def test_a_large_cursor_is_kept_whole_in_chunks(
    kafka: KafkaSettings, name: str, topic: str
) -> None:
    """Ranges beyond what metadata holds are all read back, and old chunks are deleted."""
    store = CursorStore(kafka)
    where = SourcePartition(topic, 0)
    # Squares do not compress well: some hundred kB.
    large = _cursor(name, topic, 0, *(1 + n * n for n in range(1, 200_000)), end=1 << 40)
    with store.take(name) as owner:
        owner.write(SubscriptionState(), [PartitionCursor(large)])
        stored = store.read(name)
        assert stored is not None
        assert state_of(stored.cursors[where].cursor) == state_of(large)
        wait_until(lambda: " chunks " in _committed(kafka, name, topic, 0)[1])
        small = _cursor(name, topic, 0, 3)
        owner.write(SubscriptionState(), [PartitionCursor(small)])
    stored = store.read(name)
    assert stored is not None
    assert state_of(stored.cursors[where].cursor) == state_of(small)
    left = [key for key in store._topic.read() if name.encode() in key]
    assert sorted(left) == sorted(
        [
            f'["cursor","{name}","{topic}",0]'.encode(),
            f'["owner","{name}"]'.encode(),
            f'["state","{name}"]'.encode(),
        ]
    )


@pytest.mark.promise("sub-jobs-subscription-older")
def test_former_owner_is_fenced(kafka: KafkaSettings, name: str, topic: str) -> None:
    """Whoever had a subscription before writes nothing any more, and learns why."""
    store = CursorStore(kafka)
    first = store.take(name)
    first.write(SubscriptionState(step=1), [PartitionCursor(_cursor(name, topic, 0, 0))])
    with store.take(name) as second:
        assert second.stored is not None
        assert second.stored.state.step == 1
        with pytest.raises(SubscriptionFencedError, match=f"subscription '{name}' was taken over"):
            first.write(SubscriptionState(step=2), [PartitionCursor(_cursor(name, topic, 0, 0, 1))])
        assert first.is_fenced
        with pytest.raises(SubscriptionFencedError):
            first.write(SubscriptionState(step=3), [])
        second.write(SubscriptionState(step=5), [PartitionCursor(_cursor(name, topic, 0, 0, 1, 2))])
        wait_until(lambda: _committed(kafka, name, topic, 0)[0] == 3)
    first.close()
    stored = store.read(name)
    assert stored is not None
    assert stored.state.step == 5


def test_former_owner_is_fenced_between_two_records(
    kafka: KafkaSettings, name: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's answer to one record may arrive before the next is handed over."""

    class Answered(Producer):
        """A client whose records are answered one by one."""

        def produce(self, *record: Any, **fields: Any) -> None:
            super().produce(*record, **fields)
            with contextlib.suppress(KafkaException):  # what is wrong with it, the next call tells
                self.flush(_TIMEOUT_S)

    monkeypatch.setattr(fenced_writer, "Producer", Answered)
    first = FencedWriter(kafka, name, name=f"subscription '{name}'")
    monkeypatch.undo()
    FencedWriter(kafka, name, name="its successor").close()
    records = [TopicWrite(topic, 0, b"k", b"1"), TopicWrite(topic, 0, b"k", b"2")]
    for _ in range(2):
        with pytest.raises(SubscriptionFencedError, match=f"'{name}' was taken over"):
            first.write(records)
    assert first.is_over
    first.close()


def test_an_owner_that_writes_while_it_is_replaced_does_not_stay(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its id back, as after an outage, before the newer one has claimed anything."""
    store = CursorStore(kafka)
    first = store.take(name)
    claims = FencedWriter.write

    def claims_late(writer: FencedWriter, *args: Any) -> None:
        monkeypatch.undo()
        first.write(SubscriptionState(step=1), [])
        claims(writer, *args)

    monkeypatch.setattr(FencedWriter, "write", claims_late)
    with store.take(name) as second:
        assert second.stored is not None
        assert second.stored.state.step == 1
        with pytest.raises(SubscriptionFencedError):
            first.write(SubscriptionState(step=2), [])
        second.write(SubscriptionState(step=3), [])
    first.close()


@pytest.mark.promise("sub-owner-subscription-idle")
def test_a_lease_is_renewed_by_an_owner_that_writes_nothing(
    kafka: KafkaSettings, name: str, topic: str
) -> None:
    """Who watches its claim does not take it for gone; once it has ended, at once."""
    surveyor = Surveyor(kafka)
    owner = surveyor.cursors.take(name, lease=HeldLease(SHORT_LEASE_S))
    owner.write(SubscriptionState(step=1), [PartitionCursor(_cursor(name, topic, 0, 0))])
    look = surveyor.look(name, surveyor.cursors.follow(name))
    held = await_free(look, patiently=False)
    assert held is not None
    assert held.owner == ProcessIdentity.own()
    with pytest.raises(SubscriptionConnectedError, match=f"{name!r} has a consumer"):
        surveyor.cursors.take(name, watch=surveyor.watch)
    owner.write(SubscriptionState(step=2), [])  # its id was taken from it meanwhile
    owner.close()
    assert look()[0] is Hold.FREE
    with surveyor.cursors.take(name, watch=surveyor.watch) as other:
        assert other.stored is not None
        assert other.stored.state.step == 2


@pytest.mark.promise("sub-owner-subscription-dies")
def test_transaction_that_a_dead_owner_left_is_not_read(
    kafka: KafkaSettings, name: str, topic: str
) -> None:
    """What a process wrote and had not committed when it died counts for nothing."""
    store = CursorStore(kafka)
    with store.take(name) as owner:
        owner.write(SubscriptionState(step=1), [PartitionCursor(_cursor(name, topic, 0, 0))])
    dying = Producer({**kafka.librdkafka(), "transactional.id": transactional_id(kafka, name)})
    dying.init_transactions(PATIENCE_S)
    dying.begin_transaction()
    dying.produce(
        cursor_topic(kafka),
        SubscriptionState(step=9).encode(),
        f'["state","{name}"]'.encode(),
        partition=store._topic.partition_of(name),
    )
    dying.flush(PATIENCE_S)  # it is in the log now, and in no committed transaction
    with store.take(name) as owner:
        assert owner.stored is not None
        assert owner.stored.state.step == 1
    with pytest.raises(KafkaException):
        dying.commit_transaction(PATIENCE_S)


@pytest.mark.promise("sub-owner-subscription-dies")
def test_open_transaction_of_another_subscription_hides_nothing(
    kafka: KafkaSettings, name: str, topic: str
) -> None:
    """A cursor behind another's open transaction is read once that has ended; never one before."""
    store = CursorStore(kafka)
    with store.take(name) as owner:
        owner.write(SubscriptionState(step=1), [PartitionCursor(_cursor(name, topic, 0, 0))])
        options = {"transactional.id": f"other-{name}", "transaction.timeout.ms": 2_000}
        other = Producer({**kafka.librdkafka(), **options})
        other.init_transactions(PATIENCE_S)
        other.begin_transaction()
        other.produce(cursor_topic(kafka), b"", b"?", partition=store._topic.partition_of(name))
        other.flush(PATIENCE_S)
        owner.write(SubscriptionState(step=2), [PartitionCursor(_cursor(name, topic, 0, 0, 1))])
    stored = store.read(name)  # waits until the broker ends the open one
    assert stored is not None
    assert stored.state.step == 2


def test_removed_subscription_leaves_nothing(kafka: KafkaSettings, name: str, topic: str) -> None:
    store = CursorStore(kafka)
    with store.take(name) as owner:
        owner.write(SubscriptionState(), [PartitionCursor(_cursor(name, topic, 0, 0))])
        owner.remove()
    assert store.read(name) is None


def test_cursor_that_is_removed_leaves_nothing(kafka: KafkaSettings, name: str, topic: str) -> None:
    """Nor do its chunks; one that is written in the same transaction stays."""
    store = CursorStore(kafka)
    large = _cursor(name, topic, 0, *(1 + n * n for n in range(1, 20_000)), end=1 << 40)
    other = _cursor(name, topic, 1, 0)
    gone, left = SourcePartition(topic, 0), SourcePartition(topic, 1)
    with store.take(name) as owner:
        owner.write(SubscriptionState(), [PartitionCursor(large), PartitionCursor(other)])
        owner.write(SubscriptionState(), [PartitionCursor(other)], removed=[gone, left])
        assert owner.stored is not None
        assert [*owner.stored.cursors] == [left]
    stored = store.read(name)
    assert stored is not None
    assert [*stored.cursors] == [left]
    keys = [key for key in store._topic.read() if name.encode() in key]
    assert sorted(keys) == sorted(
        [
            f'["cursor","{name}","{topic}",1]'.encode(),
            f'["owner","{name}"]'.encode(),
            f'["state","{name}"]'.encode(),
        ]
    )


def test_cursor_of_another_subscription_is_refused(
    kafka: KafkaSettings, name: str, topic: str
) -> None:
    """An owner writes its own cursors only."""
    with (
        CursorStore(kafka).take(name) as owner,
        pytest.raises(SubscriptionError, match=f"other on {topic}-0"),
    ):
        owner.write(SubscriptionState(), [PartitionCursor(_cursor("other", topic, 0, 0))])


@pytest.mark.test_all
@pytest.mark.promise("sub-brokers-restart-killed")
def test_brokers_that_restart_are_waited_for(make_broker: MakeBroker, name: str) -> None:
    """A cursor that is written while the broker is away is written once it is back."""
    broker = make_broker()
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    store = _patient(kafka)
    with store.take(name) as owner:
        owner.write(SubscriptionState(step=1), _of_the_topic_itself(name, 0))
        broker.kill()
        broken = threading.Thread(
            target=owner.write, args=(SubscriptionState(step=2), _of_the_topic_itself(name, 0, 1))
        )
        broken.start()
        broker.start()
        broken.join(_TIMEOUT_S)
        assert not broken.is_alive()
    stored = store.read(name)
    assert stored is not None
    assert stored.state.step == 2


@pytest.mark.test_all
@pytest.mark.promise("sub-brokers-restart-killed")
def test_each_write_beside_restarts_of_the_broker_is_stored(
    make_broker: MakeBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that is cut off by a restart may end the client, and never the owner."""
    monkeypatch.setattr(fenced_writer, "TRANSACTION_TIMEOUT_MS", 1_000)
    broker = make_broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"})
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    written = 0
    with _patient(kafka).take(name) as owner, ThreadPoolExecutor(1) as restarts:
        for end in (broker.stop, broker.kill, broker.stop):

            def restart(end: Callable[[], object] = end) -> None:
                end()
                broker.start()

            restarted, before = restarts.submit(restart), written
            while not restarted.done() or written < before + 20:
                written += 1
                owner.write(SubscriptionState(step=written), _of_the_topic_itself(name, 0))
            restarted.result()
        assert not owner.is_fenced
    stored = CursorStore(kafka).read(name)
    assert stored is not None
    assert stored.state.step == written


@pytest.mark.promise("sub-sequitur-cursors-gets")
def test_cursors_of_a_topic_that_has_grown_are_found_and_removed(make_broker: MakeBroker) -> None:
    """Which partition new names go to changes with the number; what is stored stays where it is."""
    kafka = KafkaSettings(bootstrap_servers=make_broker().bootstrap_servers)
    store, names = CursorStore(kafka), [f"grown-{number}" for number in range(4)]
    for step, name in enumerate(names):
        with store.take(name) as owner:
            owner.write(SubscriptionState(step=step), _of_the_topic_itself(name, 0, 1))
    _register_without_place(kafka, store, "billing")
    before = [store._topic.partition_of(name) for name in names]
    admin = AdminClient(kafka.librdkafka())
    admin.create_partitions([NewPartitions("sequitur-cursors", 13)])["sequitur-cursors"].result(
        PATIENCE_S
    )
    wait_until(lambda: [store._topic.partition_of(name) for name in names] != before)
    surveyor = Surveyor(kafka)
    registry = surveyor.registry.read()
    stored = surveyor.stored(registry, registry.subscriptions).stored
    assert stored["billing"].cursors[SourcePartition("orders", 0)].cursor.committed_offset == 3
    stored = store.read_all(names).stored
    assert [stored[name].state.step for name in names] == [0, 1, 2, 3]
    for name, found in stored.items():
        assert len(store.places(name)) == 1
        with store.take(name) as owner:
            assert owner.stored is not None
            assert owner.stored.state == found.state
            (cursor,) = owner.stored.cursors.values()
            assert cursor.cursor.committed_offset == 2
            owner.write(SubscriptionState(step=9), _of_the_topic_itself(name, 0, 1, 2))
        again = store.read(name, partition=owner.partition)
        assert again is not None
        assert again.state.step == 9
        with store.take(name) as owner:
            owner.remove()
        assert store.read(name) is None


@pytest.mark.promise("sub-brokers-restart-killed")
def test_transaction_that_brokers_ended_is_no_takeover(
    make_broker: MakeBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that took longer than a transaction may is made again: nobody has taken over."""
    monkeypatch.setattr(fenced_writer, "TRANSACTION_TIMEOUT_MS", 1_000)
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    broker = make_broker(often)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    store = _patient(kafka)
    with store.take(name) as owner:
        owner.write(SubscriptionState(step=1), _of_the_topic_itself(name, 0))
        before = _end(kafka, IsolationLevel.READ_UNCOMMITTED)
        producer = owner._writer._producer
        producer.begin_transaction()
        producer.produce("sequitur-cursors", b"", b"?", partition=0)
        producer.flush(PATIENCE_S)
        # Nobody but the broker ends it: its mark is behind what was written, however soon.
        wait_until(lambda: before < _end(kafka) == _end(kafka, IsolationLevel.READ_UNCOMMITTED))
        owner._writer._failure = UnansweredError("as an attempt leaves it that got no answer")
        owner.write(SubscriptionState(step=2), _of_the_topic_itself(name, 0, 1))
        assert not owner.is_fenced
        with store.take(name) as other:
            assert other.stored is not None
            assert other.stored.state.step == 2
            with pytest.raises(SubscriptionFencedError):
                owner.write(SubscriptionState(step=3), _of_the_topic_itself(name, 0, 1))


def _patient(kafka: KafkaSettings) -> CursorStore:
    return CursorStore(kafka, outages=Outages(120, 0, wait=threading.Event().wait, tell=len))


def _of_the_topic_itself(name: str, *offsets: int) -> list[PartitionCursor]:
    return [PartitionCursor(_cursor(name, "sequitur-cursors", 0, *offsets))]


def _register_without_place(kafka: KafkaSettings, store: CursorStore, name: str) -> None:
    """Register a subscription whose record does not say where its cursors are."""
    record = SubscriptionRecord(name, ("orders",), SubscriptionType.SHARED, 1, group=f"g-{name}")
    RegistryStore(kafka).change(lambda registry: registry.created(record))
    with store.take(name) as owner:
        owner.write(SubscriptionState(), [PartitionCursor(_cursor(name, "orders", 0, 0, 1, 2))])


def _end(kafka: KafkaSettings, level: IsolationLevel = IsolationLevel.READ_COMMITTED) -> int:
    """Return where the first partition of the cursors' topic ends, for readers of a level."""
    admin, where = AdminClient(kafka.librdkafka()), TopicPartition("sequitur-cursors", 0)
    asked = admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=level)  # type: ignore[no-untyped-call] # has no annotations
    return int(asked[where].result(PATIENCE_S).offset)

"""The reader of the control topic, on a cluster that answers by script: nothing stops it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v4, FetchResponse_v11
from aiokafka.protocol.offset import OffsetResponse_v1
from structlog.testing import capture_logs

from sequitur.errors import FatalError, RetriableError
from sequitur.kafka.control import BacklogState, key_of
from sequitur.kafka.log_reading import FETCH_WAIT_MS
from sequitur.kafka.record_batch import new_builder
from sequitur.producer import KafkaSettings
from sequitur.producer.quota import ControlReader, QuotaGate
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_TOPIC = "sequitur-subscriptions"
_HOLD = BacklogState(issued_ms=0, valid_for_ms=1000, policy="producer_request_hold").encode()


def _batch(offset: int, key: bytes | None, value: bytes | None) -> bytes:
    builder = new_builder(1 << 20)
    builder.append(0, 0, key, value, [])
    return struct.pack(">q", offset) + bytes(builder.build())[8:]


class _Wire:
    """Stands for `Wire`: one broker, and what its log holds.

    Attributes:
        log: Batches of one record, by offset.
        start: Offset of the first that is not deleted.
        stable: Where readers of committed records end.
        errors: Raised by the next requests, one by one.
        errors_at: Raised once when this offset is asked for.
        fetched: The offsets that were asked for.
        asked: What else was asked for: of a topic, a partition, a node, and how long to wait.
        answers: Whether a broker tells of the topic.
        node: The leader.
        attempts: How often a reader has begun to read.
    """

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.stable = 0
        self.start = 0
        self.errors: list[Exception] = []
        self.errors_at: dict[int, Exception] = {}
        self.id: bytes | None = b"1"
        self.unauthorized = False
        self.version: type[Any] = FetchResponse_v11
        self.fetched: list[int] = []
        self.asked: set[tuple[Any, ...]] = set()
        self.answers = True
        self.node: int | None = 1
        self.attempts = 0

    async def refresh(self, topics: Any) -> bool:
        assert topics == [_TOPIC]
        self.attempts += 1
        await asyncio.sleep(0)
        return self.answers

    def is_unauthorized(self, topic: str) -> bool:
        self.asked.add(("unauthorized", topic))
        return self.unauthorized

    def topic_id(self, topic: str) -> bytes | None:
        self.asked.add(("id", topic))
        return self.id

    def leader(self, topic: str, partition: int) -> int | None:
        self.asked.add(("leader", topic, partition))
        return None if self.id is None else self.node

    async def close(self) -> None:
        pass

    async def ask(self, node: int, request: Any) -> Any:
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        if not isinstance(request, FetchRequest):
            ((topic, ((partition, time_ms),)),) = request._topics
            self.asked.add(("offset", node, topic, partition))
            offset = self.start if time_ms == -2 else self.stable
            return OffsetResponse_v1([(_TOPIC, [(0, 0, -1, offset)])])
        ((topic, ((partition, offset, _),)),) = request.topics
        self.asked.add(("fetch", node, topic, partition, request._max_wait_ms))
        self.fetched.append(offset)
        if offset in self.errors_at:
            raise self.errors_at.pop(offset)
        batch = self.log[offset] if offset < len(self.log) else b""
        if not batch:
            await asyncio.sleep(0.005)
        head = (0, 0, len(self.log), self.stable)
        if self.version is FetchResponse_v4:
            return FetchResponse_v4(0, [(_TOPIC, [(*head, [], batch)])])
        return FetchResponse_v11(0, 0, 0, [(_TOPIC, [(*head, 0, [], -1, batch)])])


class _Rig:
    """A reader of that cluster, and its gate."""

    def __init__(self, wire: _Wire) -> None:
        self.wire = wire
        self.gate = QuotaGate(lambda: 0)
        kafka = KafkaSettings(bootstrap_servers="unused:1")
        self.reader = ControlReader(kafka, self.gate, client_id="test", random=Random(1))

    def write(self, topic: str, value: bytes | None = _HOLD) -> None:
        self.wire.log.append(_batch(len(self.wire.log), key_of(topic), value))
        self.wire.stable = len(self.wire.log)

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():  # noqa: ASYNC110 - nothing tells when it does
            await asyncio.sleep(0.001)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Rig]:
    wire = _Wire()
    monkeypatch.setattr("sequitur.producer.quota.Wire", lambda *_args, **_options: wire)
    rig = _Rig(wire)
    yield rig
    await rig.reader.close(1)
    rig.gate.close()


@pytest.mark.parametrize("version", [FetchResponse_v4, FetchResponse_v11])
async def test_records_are_read_from_the_beginning_and_followed(rig: _Rig, version: Any) -> None:
    rig.wire.version = version
    rig.write("a")
    rig.write("b")
    rig.reader.start()
    await rig.until(lambda: rig.gate.limits("b"))
    assert rig.gate.limits("a")
    rig.write("a", None)
    await rig.until(lambda: not rig.gate.limits("a"))
    assert rig.wire.fetched[:3] == [0, 1, 2]
    assert set(rig.wire.fetched[2:]) <= {2, 3}
    assert rig.wire.asked == {
        ("unauthorized", _TOPIC),
        ("id", _TOPIC),
        ("leader", _TOPIC, 0),
        ("offset", 1, _TOPIC, 0),
        ("fetch", 1, _TOPIC, 0, FETCH_WAIT_MS),
    }


@pytest.mark.parametrize(
    ("lack", "level", "reason"),
    [
        ({"unauthorized": True}, "warning", f"topic {_TOPIC}: no right to read it"),
        ({"answers": False}, "info", "no broker answers"),
        ({"node": None}, "info", "the topic has no leader"),
    ],
    ids=["no-right", "no-answer", "no-leader"],
)
async def test_what_keeps_it_from_reading_is_told_once(
    rig: _Rig, lack: dict[str, Any], level: str, reason: str
) -> None:
    rig.write("t")
    before = dict(vars(rig.wire))
    vars(rig.wire).update(lack)
    with capture_logs() as logs:
        rig.reader.start()
        await rig.until(lambda: rig.wire.attempts > 3)
        vars(rig.wire).update({name: before[name] for name in lack})
        await rig.until(lambda: rig.gate.limits("t"))
    told = [(line["log_level"], line["event"], line.get("reason")) for line in logs]
    assert told == [
        (level, "backlog quotas cannot be read", reason),
        ("info", "backlog quotas are read", None),
    ]
    assert {line["topic"] for line in logs} == {_TOPIC}


async def test_without_the_topic_nothing_is_told(rig: _Rig) -> None:
    """There is none before somebody sets a quota."""
    rig.wire.id = None
    with capture_logs() as logs:
        rig.reader.start()
        await rig.until(lambda: rig.wire.attempts)
        await asyncio.sleep(0.01)
    assert not logs


async def test_its_connections_are_the_producers_by_settings_and_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "sequitur.producer.quota.Wire", lambda *given, **by: made.append((given, by))
    )
    kafka = KafkaSettings(bootstrap_servers="unused:1")
    token: Any = object()
    gate = QuotaGate(lambda: 0)
    ControlReader(kafka, gate, client_id="test", random=Random(1), token_provider=token)
    ((given, by),) = made
    assert given == (kafka,)
    assert (by["client_id"], by["token_provider"]) == ("test", token)
    assert timedelta(0) < by["request_timeout"] < timedelta(seconds=10)


@pytest.mark.promise("in-whoever-checks-quotas")
@pytest.mark.parametrize(
    ("error", "level", "reason"),
    [
        (RetriableError("away"), "info", "away"),
        (FatalError("no"), "warning", "no"),
        (RuntimeError("a mistake of ours"), "warning", "RuntimeError('a mistake of ours')"),
    ],
)
async def test_no_error_stops_it(rig: _Rig, error: Exception, level: str, reason: str) -> None:
    """It tries again, and reads on where it was; what it knows counts meanwhile."""
    rig.write("a")
    rig.reader.start()
    await rig.until(lambda: rig.gate.limits("a"))
    with capture_logs() as logs:
        rig.wire.errors = [error, error]
        await rig.until(lambda: not rig.wire.errors)
        assert rig.gate.limits("a")
        await rig.until(lambda: logs)
    assert (logs[0]["log_level"], logs[0]["reason"]) == (level, reason)
    rig.wire.fetched.clear()
    await rig.until(lambda: rig.wire.fetched)  # at the end of the log
    rig.write("b")
    await rig.until(lambda: rig.gate.limits("b"))
    assert 0 not in rig.wire.fetched


async def test_a_damaged_batch_is_told_and_read_again(rig: _Rig) -> None:
    rig.write("t")
    whole = rig.wire.log[0]
    rig.wire.log[0] = whole[:-1] + bytes([whole[-1] ^ 1])
    rig.reader.start()
    await rig.until(lambda: rig.wire.attempts > 2)
    assert not rig.gate.limits("t")
    rig.wire.log[0] = whole
    await rig.until(lambda: rig.gate.limits("t"))


async def test_records_that_are_gone_are_passed_over(rig: _Rig) -> None:
    for topic in "abc":
        rig.write(topic)
    rig.wire.start = 2
    rig.reader.start()
    await rig.until(lambda: rig.gate.limits("c"))
    assert rig.wire.fetched[0] == 2
    assert not rig.gate.limits("a")


async def test_a_reading_that_breaks_off_loses_no_record(rig: _Rig) -> None:
    """What was read and not yet given to the gate is read again."""
    for topic in "abc":
        rig.write(topic)
    rig.wire.errors_at[1] = RetriableError("away")
    rig.reader.start()
    await rig.until(lambda: rig.gate.limits("c"))
    assert rig.wire.fetched[:5] == [0, 1, 0, 1, 2]
    assert rig.gate.limits("a")


async def test_a_topic_made_anew_is_read_from_its_beginning(rig: _Rig) -> None:
    """And what the former one said counts no more."""
    rig.write("a")
    rig.reader.start()
    await rig.until(lambda: rig.gate.limits("a"))
    rig.wire.id = b"2"
    rig.wire.log = [_batch(0, key_of("b"), _HOLD)]
    rig.wire.errors = [RetriableError("the partition is not there")]
    await rig.until(lambda: rig.gate.limits("b"))
    assert not rig.gate.limits("a")


async def test_a_reader_that_was_closed_asks_no_more(rig: _Rig) -> None:
    """Nor does one that was never started mind it."""
    await rig.reader.close(1)
    rig.write("t")
    rig.reader.start()
    await rig.until(lambda: rig.gate.limits("t"))
    await rig.reader.close(1)
    rig.wire.fetched.clear()
    await asyncio.sleep(0.02)
    assert not rig.wire.fetched


@in_virtual_time
async def test_to_close_ends_in_time_though_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of it is the reading's, which heeds no end, and half the connections'."""
    loop, wire, closing_s = asyncio.get_running_loop(), _Wire(), 0.0

    async def refresh(_topics: Any) -> bool:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)
        return True

    async def close() -> None:
        nonlocal closing_s
        closing_s = loop.time()
        await asyncio.sleep(3600)

    monkeypatch.setattr(wire, "refresh", refresh)
    monkeypatch.setattr(wire, "close", close)
    monkeypatch.setattr("sequitur.producer.quota.Wire", lambda *_args, **_options: wire)
    reader = _Rig(wire).reader
    reader.start()
    await asyncio.sleep(1)
    begun_s = loop.time()
    await reader.close(8)
    assert (closing_s - begun_s, loop.time() - closing_s) == pytest.approx((4, 4))

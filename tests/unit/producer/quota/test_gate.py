"""The gate: who waits, who is refused, and in which order they go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from sequitur.errors import BacklogQuotaError, RetriableError
from sequitur.kafka.control import BacklogState, ProducerPolicy, key_of
from sequitur.producer.quota import QuotaGate
from tests.support.virtual_time import in_virtual_time

_LONG_S = 3600.0
_LIFTED = [(key_of("t"), None)]


def _record(
    policy: ProducerPolicy | None = "producer_request_hold", **given: Any
) -> list[tuple[bytes, bytes]]:
    figures = {"issued_ms": 0, "valid_for_ms": 1000, "backlog_bytes": 12, "limit_bytes": 10}
    return [(key_of("t"), BacklogState(policy=policy, **(figures | given)).encode())]


class _Rig:
    """A gate with a clock moved by hand, and senders that note when they passed."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.gate = QuotaGate(lambda: self.now_ms)
        self.passed: list[int] = []

    async def send(self, number: int, wait_s: float = _LONG_S) -> None:
        if self.gate.limits("t"):
            await self.gate.admit("t", asyncio.get_running_loop().time() + wait_s)
        self.passed.append(number)

    async def held(self, count: int) -> list[asyncio.Task[None]]:
        before = self.gate.statistics("t").held
        tasks = [asyncio.create_task(self.send(number)) for number in range(count)]
        await asyncio.sleep(0)
        assert self.gate.statistics("t").held == before + count
        return tasks


@pytest.fixture
async def rig() -> Any:
    """Without a record; what it started ends with the test."""
    rig = _Rig()
    yield rig
    rig.gate.close()


async def test_other_topics_go_on(rig: _Rig) -> None:
    rig.gate.take([(key_of("other"), _record()[0][1]), *_record(None)])
    assert rig.gate.limits("other")
    assert not rig.gate.limits("t")
    await rig.gate.admit("t", 0.0)


@pytest.mark.promise("in-topic-backlog-quota")
async def test_held_senders_go_on_in_their_order(rig: _Rig) -> None:
    """Also before one that comes at the moment when the topic is free again."""
    rig.gate.take(_record())
    tasks = await rig.held(5)
    rig.gate.take(_LIFTED)
    tasks.append(asyncio.create_task(rig.send(5)))
    await asyncio.gather(*tasks)
    assert rig.passed == [0, 1, 2, 3, 4, 5]
    assert not rig.gate.limits("t")


@pytest.mark.promise("in-topic-backlog-quota")
async def test_a_state_that_is_read_again_behind_an_older_one_counts_no_longer(rig: _Rig) -> None:
    """The log is read from its beginning again, as when it was cut off: it holds both."""
    both = [*_record(backlog_bytes=11), *_record()]
    rig.gate.take(both[:1])
    rig.now_ms = 500
    rig.gate.take(both[1:])
    rig.now_ms = 1_400
    rig.gate.take([*both, (key_of("t"), b"{")])
    assert rig.gate.limits("t")
    rig.now_ms = 1_501
    rig.gate.take(both)
    assert not rig.gate.limits("t")
    rig.gate.take(_record(backlog_bytes=13))
    assert rig.gate.limits("t")


async def test_one_that_is_cancelled_lets_the_others_pass(rig: _Rig) -> None:
    rig.gate.take(_record())
    tasks = await rig.held(4)
    for gone in (0, 2):
        tasks[gone].cancel()
    await asyncio.wait([tasks[0], tasks[2]])
    rig.gate.take(_LIFTED)
    await asyncio.gather(tasks[1], tasks[3])
    assert rig.passed == [1, 3]


@in_virtual_time
async def test_a_stale_state_holds_nobody() -> None:
    """Its time is over by the clock given, and nothing was read meanwhile."""
    rig = _Rig()
    rig.gate.take(_record())
    (held,) = await rig.held(1)
    rig.now_ms = 1000
    await asyncio.sleep(0.3)  # at least one look
    assert not held.done()
    rig.now_ms = 1001
    await held
    assert rig.passed == [0]


async def test_a_wait_has_an_end(rig: _Rig) -> None:
    """The error has topic, policy and figures; whoever waits longer still waits."""
    rig.gate.take(_record(subscription="billing"))
    (other,) = await rig.held(1)
    with pytest.raises(BacklogQuotaError, match="topic t takes no events, also after") as refused:
        await rig.send(1, wait_s=0.001)
    assert refused.value.topic == "t"
    assert refused.value.state.subscription == "billing"
    assert (refused.value.state.backlog_bytes, refused.value.state.limit_bytes) == (12, 10)
    assert "12 bytes of at most 10 bytes" in str(refused.value)
    assert isinstance(refused.value, RetriableError)
    assert not other.done()
    assert (rig.gate.statistics("t").held, rig.gate.statistics("t").refused) == (2, 1)
    with pytest.raises(BacklogQuotaError):
        await rig.send(2, wait_s=0.001)
    assert (rig.gate.statistics("t").held, rig.gate.statistics("t").refused) == (3, 2)
    other.cancel()


async def test_the_policy_of_exceptions_refuses_at_once(rig: _Rig) -> None:
    """Nobody is held, and it ends with the record."""
    rig.gate.take(_record("producer_exception"))
    for refused in (1, 2):
        with pytest.raises(BacklogQuotaError, match=r"takes no events \(producer_exception\)"):
            await rig.send(0)
        found = rig.gate.statistics("t")
        assert (found.held, found.refused) == (0, refused)
    rig.gate.take(_LIFTED)
    await rig.send(1)
    assert rig.passed == [1]


async def test_who_is_held_hears_of_another_policy(rig: _Rig) -> None:
    """From holding to exceptions: all that wait are refused."""
    rig.gate.take(_record())
    tasks = await rig.held(3)
    rig.gate.take(_record("producer_exception"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [BacklogQuotaError] * 3


async def test_a_wait_for_the_quota_outlasts_each_policy(rig: _Rig) -> None:
    """It ends when nothing limits the topic."""
    await rig.gate.lifted("t")
    rig.gate.take(_record("producer_exception"))
    waiting = asyncio.create_task(rig.gate.lifted("t"))
    await asyncio.sleep(0)
    rig.gate.take(_record())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    rig.gate.take(_LIFTED)
    await waiting


async def test_a_closed_gate_holds_nobody(rig: _Rig) -> None:
    """Senders are told that they were not admitted; who waits for the quota is let go."""
    rig.gate.take(_record())
    tasks = [*await rig.held(2), asyncio.create_task(rig.gate.lifted("t"))]
    rig.gate.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [RetriableError, RetriableError, type(None)]
    assert str(results[0]) == "the producer was closed"
    assert not rig.passed


async def test_bad_records_are_told_once_and_the_next_ones_count(rig: _Rig) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            rig.gate.take([(key_of("t"), b"{"), (key_of("u"), b"null"), *_record()])
    told = [line["reason"] for line in logs if line["event"] == "a control record is ignored"]
    assert [reason.partition(":")[0] for reason in told] == [
        "control record, backlog of topic 't'",
        "control record, backlog of topic 'u'",
    ]
    assert rig.gate.limits("t")


async def test_only_so_many_bad_records_are_told(rig: _Rig) -> None:
    """A topic full of them fills no log, and memory neither."""
    with capture_logs() as logs:
        rig.gate.take((key_of(str(number)), b"{") for number in range(200))
    assert len(logs) == 100


@in_virtual_time
@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_gate_that_has_nothing_to_wait_for_looks_no_more(is_closed: bool) -> None:
    """When nothing is limited, or it was closed; until then it looks at its clock."""
    looks: list[int] = []

    def now_ms() -> int:
        looks.append(0)
        return 0

    gate = QuotaGate(now_ms)
    gate.take(_record())
    for over in (False, True):
        if over and is_closed:
            gate.close()
        elif over:
            gate.take(_LIFTED)
        looks.clear()
        await asyncio.sleep(10)
        assert bool(looks) is not over


async def test_a_wait_is_logged_once_until_it_is_over(rig: _Rig) -> None:
    """Not each time that a sender begins anew."""
    with capture_logs() as logs:
        for _ in range(2):
            rig.gate.take(_record())
            for _ in range(3):
                with pytest.raises(BacklogQuotaError):
                    await rig.send(0, wait_s=0.001)
            rig.gate.take(_LIFTED)
    told = [(line["event"], line["topic"], line["reason"]) for line in logs]
    figures = "the backlog is over its quota: 12 bytes of at most 10 bytes"
    assert told == [("sends wait for a backlog", "t", figures)] * 2


async def test_what_is_blocked_is_said_with_the_figures(rig: _Rig) -> None:
    rig.gate.take(_record("producer_exception", backlog_bytes=12, limit_bytes=10))
    assert rig.gate.blocked_reason(["other"]) is None
    reason = rig.gate.blocked_reason(["other", "t"])
    assert reason == (
        "topic t takes no events (producer_exception): the backlog is over its quota: "
        "12 bytes of at most 10 bytes"
    )
    assert rig.gate.statistics(["other"]).proximity is None
    assert rig.gate.statistics(["t"]).proximity == 1.2
    rig.now_ms = 1001
    assert rig.gate.statistics(["t"]).proximity is None

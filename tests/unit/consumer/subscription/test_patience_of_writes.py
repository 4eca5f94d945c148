"""How long the owner of a subscription waits for brokers that do not answer a write."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sequitur.base.retry import Outages
from sequitur.consumer.subscription import cursor_store
from sequitur.consumer.subscription.claims import HeldLease
from sequitur.consumer.subscription.cursor_store import CursorOwner
from sequitur.consumer.subscription.fenced_writer import FencedWriter
from sequitur.consumer.subscription.group_offsets import GroupOffsets
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import SubscriptionFencedError, UnansweredError
from sequitur.kafka.settings import KafkaSettings
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 60.0
_NO_ANSWER = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
_ABORTED = KafkaError(1, "aborted", txn_requires_abort=True)
_FENCED = KafkaError(90, "fenced", fatal=True)


class _Brokers:
    """Brokers with one topic, and a clock. What a call meets is set by its name."""

    name, partition = "cursors", 0

    def __init__(self) -> None:
        self.now_s = 0.0
        self.found: dict[bytes, bytes] = {}
        self.clients = 0
        self.commits: Callable[[], None] = lambda: None
        self.inits: Callable[[], None] = lambda: None

    def read(self, _partition: int = 0) -> dict[bytes, bytes]:
        return dict(self.found)

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return False

    def no_answer(self, until_s: float) -> Callable[[], None]:
        def ask() -> None:
            if self.now_s < until_s:
                raise KafkaException(_NO_ANSWER)

        return ask

    def take(self) -> CursorOwner:
        outages = Outages(_PATIENCE_S, 0, wait=self.wait, tell=len, clock=lambda: self.now_s)
        return CursorOwner(
            KafkaSettings(bootstrap_servers="unused:1"),
            self,  # type: ignore[arg-type]  # stands for the topic
            lambda: self,  # type: ignore[arg-type,return-value]  # likewise
            self.partition,
            "s",
            followed=None,
            lease=HeldLease(0),
            watch=None,
            offsets=GroupOffsets(len),
            to_remove=False,
            outages=outages,
        )


class _Client:
    """Stands for a client of librdkafka."""

    def __init__(self, brokers: _Brokers, _options: object) -> None:
        self._brokers = brokers
        self._open: dict[bytes, bytes | None] = {}
        brokers.clients += 1

    def init_transactions(self, _timeout_s: float) -> None:
        self._brokers.inits()

    def produce(self, _topic: str, *, value: bytes | None, key: bytes, partition: int) -> None:
        del partition
        self._open[key] = value

    def commit_transaction(self, _timeout_s: float) -> None:
        self._brokers.commits()
        for key, value in self._open.items():
            if value is None:
                self._brokers.found.pop(key, None)
            else:
                self._brokers.found[key] = value
        self._open = {}

    def abort_transaction(self, _timeout_s: float) -> None:
        self._open = {}

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> _Brokers:
    made = _Brokers()
    client: Any = partial(_Client, made)
    monkeypatch.setattr(cursor_store, "FencedWriter", partial(FencedWriter, client=client))
    return made


def test_a_write_waits_once_whichever_of_its_requests_has_no_answer(brokers: _Brokers) -> None:
    """The first client ends at once. The second has the id after 50 s, and commits nothing."""
    owner = brokers.take()

    def abort() -> None:
        brokers.commits = brokers.no_answer(1_000)
        raise KafkaException(_ABORTED)

    brokers.commits, brokers.inits = abort, brokers.no_answer(50)
    with pytest.raises(UnansweredError, match="no answer"):
        owner.write(SubscriptionState(), [])
    assert brokers.clients == 2
    assert brokers.now_s == pytest.approx(_PATIENCE_S)


def test_the_next_write_has_all_of_the_patience(brokers: _Brokers) -> None:
    owner = brokers.take()
    brokers.commits = brokers.no_answer(_PATIENCE_S + 50)
    with pytest.raises(UnansweredError):
        owner.write(SubscriptionState(), [])
    owner.write(SubscriptionState(step=1), [])
    assert brokers.now_s > _PATIENCE_S + 49


def test_a_takeover_waits_no_longer_than_a_write(
    brokers: _Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first client fails at once, and the second has the id after 50 s."""
    clock: Any = {"wait": brokers.wait, "clock": lambda: brokers.now_s}
    monkeypatch.setattr(cursor_store, "_RETRY", replace(cursor_store._RETRY, **clock))

    def abort() -> None:
        brokers.commits, brokers.inits = brokers.no_answer(1_000), brokers.no_answer(50)
        raise KafkaException(_ABORTED)

    brokers.commits = abort
    with pytest.raises(UnansweredError, match="no answer"):
        brokers.take()
    assert brokers.clients == 2
    assert brokers.now_s == pytest.approx(_PATIENCE_S)


def test_brokers_that_end_each_transaction_are_given_up(brokers: _Brokers) -> None:
    """They fence a client whose transaction takes too long. Nobody else has the subscription."""
    owner = brokers.take()

    def fence() -> None:
        brokers.wait(1)
        if brokers.now_s > 10 * _PATIENCE_S:
            pytest.fail("it is not given up")
        raise KafkaException(_FENCED)

    brokers.commits = fence
    with pytest.raises(UnansweredError) as raised:
        owner.write(SubscriptionState(), [])
    assert not isinstance(raised.value, SubscriptionFencedError)
    assert brokers.now_s == pytest.approx(_PATIENCE_S, abs=3)

"""A client whose transaction failed is over; another one may get through, unless it was fenced."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from sequitur.base.retry import Outages
from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.errors import SubscriptionFencedError, TopicError, UnansweredError
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Producer

_INVALID_TXN_STATE = 48
_PRODUCER_FENCED = 90
_TOO_LARGE = 10
_RECORD = TopicWrite("t", 0, b"k", b"v")


class _Client:
    """A client whose calls fail in order, each of them once."""

    def __init__(self, **failures: KafkaError) -> None:
        self.failures = failures
        self.calls: list[str] = []
        self.places: list[tuple[object, object]] = []
        self.handled: set[BaseException | None] = set()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object, **fields: object) -> None:
            self.calls.append(name)
            self.handled.add(sys.exc_info()[1])
            if name == "produce":
                self.places.append((arguments[0], fields["partition"]))
            if name in self.failures:
                raise KafkaException(self.failures.pop(name))

        return call


def _error(code: int, **kinds: bool) -> KafkaError:
    return KafkaError(code, "why", **kinds)


def _writer(client: _Client, **places: Any) -> FencedWriter:
    return FencedWriter(
        KafkaSettings(bootstrap_servers="nowhere:1"),
        "id",
        name="subscription 's'",
        outages=Outages(100, 0, wait=lambda _seconds: False, tell=len),
        client=lambda _options: cast("Producer", client),
        **places,
    )


@pytest.mark.promise("sub-brokers-restart-killed")
@pytest.mark.parametrize(
    ("call", "error", "kind"),
    [
        ("begin_transaction", _error(_INVALID_TXN_STATE, fatal=True), UnansweredError),
        ("produce", _error(_INVALID_TXN_STATE, fatal=True), UnansweredError),
        ("commit_transaction", _error(_INVALID_TXN_STATE, fatal=True), UnansweredError),
        ("commit_transaction", _error(1, txn_requires_abort=True), UnansweredError),
        ("commit_transaction", _error(_PRODUCER_FENCED, fatal=True), SubscriptionFencedError),
        ("produce", _error(_TOO_LARGE), TopicError),
    ],
)
def test_client_whose_transaction_failed_is_over(
    call: str, error: KafkaError, kind: type[Exception]
) -> None:
    """It is not aborted and used again: its own state and the broker's may differ for good."""
    client = _Client(**{call: error})
    writer = _writer(client)
    with pytest.raises(kind) as raised:
        writer.write([_RECORD])
    assert raised.type is kind
    assert writer.is_over
    begun = client.calls.count("begin_transaction")
    with pytest.raises(kind):
        writer.write([_RECORD])
    assert client.calls.count("begin_transaction") == begun == 1


def test_what_ended_a_client_is_told_where_the_next_record_meets_it() -> None:
    """The record's own error says only that the client is in no state to take it."""
    fenced = _error(_PRODUCER_FENCED, fatal=True)
    client = _Client(produce=_error(KafkaError._STATE), abort_transaction=fenced)
    with pytest.raises(SubscriptionFencedError):
        _writer(client).write([_RECORD])
    assert client.handled == {None}  # else what it raises keeps the error before it for good


def test_commit_that_timed_out_is_made_again_by_the_same_client() -> None:
    """Nobody knows what it did; the client asks on."""
    client = _Client(commit_transaction=_error(KafkaError._TIMED_OUT, retriable=True))
    writer = _writer(client)
    writer.write([_RECORD])
    assert client.calls.count("commit_transaction") == 2
    assert client.calls.count("produce") == 1
    assert not writer.is_over


def test_what_a_former_client_left_open_is_ended_wherever_it_may_have_written() -> None:
    """In each partition, by one transaction that leaves nothing there; else readers would wait."""
    client = _Client()
    _writer(client, writes_to=("registry", 0), beside=[("cursors", 3)])
    assert client.calls == [
        *("init_transactions", "begin_transaction", "produce", "produce", "flush"),
        "abort_transaction",
    ]
    assert client.places == [("registry", 0), ("cursors", 3)]


def test_id_that_is_refused_is_no_outage() -> None:
    """A new client that cannot have the id ends the attempts: no other one can."""
    client = _Client(init_transactions=_error(53, fatal=True))
    with pytest.raises(TopicError) as raised:
        _writer(client)
    assert raised.type is TopicError

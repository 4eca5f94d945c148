"""TLS and SASL on a real broker: who is let in, who is not, and what is said of it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from producer import (
    FatalError,
    IdempotentProducer,
    KafkaSettings,
    NotPersisted,
    Persisted,
    ProducerSettings,
)
from tests.daemon_process import DaemonProcess, read_partitions
from tests.secured_broker import PASSWORD, USER, SecuredBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_AT_ONCE_S = 10
"""Far below `delivery_timeout`, within which what may pass is tried again."""
_WRONG = "wrong-and-secret"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """The broker of this module's tests."""
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def topic(secured: SecuredBroker, request: pytest.FixtureRequest) -> str:
    """A topic of one partition."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    secured.make_topic(name)
    return name


def _values(secured: SecuredBroker, topic: str) -> list[bytes]:
    (messages,) = read_partitions(secured.address("PLAINTEXT"), topic)
    return [message.value() for message in messages]


async def _send(kafka: KafkaSettings, topic: str) -> None:
    async with IdempotentProducer(kafka) as producer:
        result = await (await producer.send_many(topic, [b"1", b"2"]))
        assert result.persisted == 2
        assert isinstance(await (await producer.send(topic, b"3")), Persisted)


async def _refusal(kafka: KafkaSettings) -> str:
    began = time.monotonic()
    with pytest.raises(FatalError) as refused:
        await IdempotentProducer(kafka).start()
    assert time.monotonic() - began < _AT_ONCE_S
    await _until_nothing_is_open()
    return str(refused.value)


async def _until_nothing_is_open() -> None:
    """Of a refused connection the client does not wait for the end; this test's loop has to."""
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    while len(selector.get_map()) > 1:  # noqa: ASYNC110 - one is the loop's own
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)  # what is no longer selected from is closed in the next turn


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", None),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
async def test_who_is_let_in_sends(
    secured: SecuredBroker, topic: str, protocol: str, mechanism: str | None
) -> None:
    """Each protocol and mechanism that the settings offer carries events."""
    await _send(secured.kafka(protocol, mechanism), topic)
    assert _values(secured, topic) == [b"1", b"2", b"3"]


async def test_a_broker_that_wants_our_certificate_gets_it(
    secured: SecuredBroker, topic: str
) -> None:
    """With certificate and key it lets us in; without them that is told, at once."""
    there: dict[str, Any] = {"bootstrap_servers": secured.address("MUTUAL")}
    files: dict[str, Any] = {
        "ssl_certificate": secured.files.certificate,
        "ssl_key": secured.files.key,
    }
    await _send(secured.kafka("SSL", **there, **files), topic)
    assert _values(secured, topic) == [b"1", b"2", b"3"]
    refusal = await _refusal(secured.kafka("SSL", **there))
    assert refusal.startswith(f"{secured.address('MUTUAL')}: TLS is refused: ")
    assert "CERTIFICATE" in refusal


@pytest.mark.parametrize("user", [USER, "mallory"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_refused_login_is_told_at_once(
    secured: SecuredBroker, mechanism: str, user: str
) -> None:
    """It will be refused again: a fatal error that names user and mechanism, not the password."""
    refusal = await _refusal(
        secured.kafka("SASL_SSL", mechanism, sasl_username=user, sasl_password=_WRONG)
    )
    address = secured.address("SASL_SSL")
    assert refusal.startswith(f"{address} refused user '{user}' by {mechanism}: ")
    assert _WRONG not in refusal


async def test_a_refusal_is_told_although_another_broker_is_away(secured: SecuredBroker) -> None:
    """Of several addresses the one that says no says more than one that says nothing."""
    servers = f"127.0.0.1:1,{secured.address('SASL_PLAINTEXT')},127.0.0.1:1"
    refusal = await _refusal(
        secured.kafka("SASL_PLAINTEXT", "PLAIN", bootstrap_servers=servers, sasl_password=_WRONG)
    )
    assert f"refused user '{USER}' by PLAIN" in refusal


async def test_a_mechanism_that_is_not_offered_is_told_at_once(secured: SecuredBroker) -> None:
    """With the mechanism's name."""
    refusal = await _refusal(secured.kafka("SASL_PLAINTEXT", "SCRAM-SHA-512"))
    assert f"refused user '{USER}' by SCRAM-SHA-512: " in refusal
    assert "UnsupportedSaslMechanism" in refusal


@pytest.mark.parametrize("trusted", ["other_ca", None])
@pytest.mark.parametrize(("protocol", "mechanism"), [("SSL", None), ("SASL_SSL", "PLAIN")])
async def test_a_broker_that_is_not_trusted_is_not_talked_to(
    secured: SecuredBroker, protocol: str, mechanism: str | None, trusted: str | None
) -> None:
    """Another authority, or the system's: the login is not even tried, and that is told at once."""
    ca = None if trusted is None else getattr(secured.files, trusted)
    refusal = await _refusal(secured.kafka(protocol, mechanism, ssl_ca=ca))
    assert refusal.startswith(f"{secured.address(protocol)}: its certificate is refused: ")
    assert f"ssl_ca says: {ca or 'the system'}" in refusal


async def test_a_name_that_is_not_in_the_certificate_is_refused(secured: SecuredBroker) -> None:
    """The broker is 127.0.0.1, and proves no other name."""
    servers = secured.address("SSL").replace("127.0.0.1", "localhost")
    refusal = await _refusal(secured.kafka("SSL", bootstrap_servers=servers))
    assert "Hostname mismatch" in refusal


async def test_a_password_that_is_changed_under_a_producer_is_told(
    secured: SecuredBroker, topic: str
) -> None:
    """Its events wait, in case the password is set right; else their reason says who was refused.

    Once it is right again, events get through.
    """
    mechanism = "SCRAM-SHA-512"
    settings = ProducerSettings(delivery_timeout=timedelta(seconds=2))
    kafka = secured.kafka("SASL_SSL", mechanism)
    async with IdempotentProducer(kafka, settings) as producer:
        assert isinstance(await (await producer.send(topic, b"1")), Persisted)
        secured.set_password(mechanism, "another")
        try:
            secured.broker.stop()  # or its connection would last
            secured.broker.start()
            outcome = await (await producer.send(topic, b"2"))
        finally:
            secured.set_password(mechanism, PASSWORD)
        assert isinstance(outcome, NotPersisted)
        assert f"refused user '{USER}' by {mechanism}" in outcome.reason
        assert PASSWORD not in outcome.reason
        assert isinstance(await (await producer.send(topic, b"3")), Persisted)
    assert _values(secured, topic) == [b"1", b"3"]


def _daemon(secured: SecuredBroker, folder: Path, topic: str, password: str) -> DaemonProcess:
    lines = folder / "lines.jsonl"
    lines.write_bytes(b'{"n":1}\n{"n":2}\n')
    return DaemonProcess(
        secured.address("SASL_SSL"),
        folder / "state",
        *("--topic", topic, "--source", f"file:{lines}", "--no-follow", "--partitions", "1"),
        *("--security-protocol", "SASL_SSL", "--ssl-ca", str(secured.files.ca)),
        *("--sasl-mechanism", "SCRAM-SHA-256", "--sasl-username", USER),
        environ={"SEQUITUR_KAFKA_SASL_PASSWORD": password},
    )


def test_the_daemon_logs_in(secured: SecuredBroker, tmp_path: Path) -> None:
    """It makes its topic and sends, and its log holds no password."""
    with _daemon(secured, tmp_path, "daemon", PASSWORD) as daemon:
        report = daemon.end()
        assert report["persisted"] == 2
        assert PASSWORD not in daemon.log
    assert _values(secured, "daemon") == [b'{"n":1}', b'{"n":2}']


def test_the_daemon_ends_at_once_when_its_login_is_refused(
    secured: SecuredBroker, tmp_path: Path
) -> None:
    """With status 3, and who was refused by what; its log holds no password."""
    began = time.monotonic()
    with _daemon(secured, tmp_path, "refused", _WRONG) as daemon:
        daemon.process.wait(60)
        daemon.kill()
        assert time.monotonic() - began < _AT_ONCE_S
        assert daemon.process.returncode == 3
        assert f"refused user '{USER}' by SCRAM-SHA-256" in daemon.log
        assert _WRONG not in daemon.log

"""TLS and SASL on a real broker: who is let in, who is not, and what is said of it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.errors import FatalError, SettingsError
from sequitur.kafka.admin import create_topic
from sequitur.local import reorder
from sequitur.producer import (
    IdempotentProducer,
    KafkaSettings,
    NotPersisted,
    Persisted,
    ProducerSettings,
)
from tests.support.daemon_process import DaemonProcess, read_partitions
from tests.support.secured_broker import PASSWORD, USER, SecuredBroker, token
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.one_process

_AT_ONCE_S = PATIENCE_S
"""Far below `delivery_timeout`, within which what may pass is tried again."""
_WRONG = "wrong-and-secret"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def topic(secured: SecuredBroker, request: pytest.FixtureRequest) -> str:
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
    assert refusal.startswith(f"{secured.address('MUTUAL')}: TLS failed: ")
    assert "CERTIFICATE" in refusal


@pytest.mark.promise("in-broker-refuses-login")
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
    refusal = await _refusal(secured.kafka("SASL_PLAINTEXT", "SCRAM-SHA-512"))
    assert f"refused user '{USER}' by SCRAM-SHA-512: " in refusal
    assert "UnsupportedSaslMechanism" in refusal


@pytest.mark.promise("in-broker-refuses-login")
@pytest.mark.parametrize("trusted", ["other_ca", None])
@pytest.mark.parametrize(("protocol", "mechanism"), [("SSL", None), ("SASL_SSL", "PLAIN")])
async def test_a_broker_that_is_not_trusted_is_not_talked_to(
    secured: SecuredBroker, protocol: str, mechanism: str | None, trusted: str | None
) -> None:
    """Another authority, or the system's: the login is not even tried, and that is told at once."""
    ca = None if trusted is None else getattr(secured.files, trusted)
    refusal = await _refusal(secured.kafka(protocol, mechanism, ssl_ca=ca))
    assert refusal.startswith(f"{secured.address(protocol)}: certificate verification failed: ")
    assert f"ssl_ca is {ca or 'the system'}" in refusal


async def test_a_name_that_is_not_in_the_certificate_is_refused(secured: SecuredBroker) -> None:
    """The broker is 127.0.0.1, and proves no other name."""
    servers = secured.address("SSL").replace("127.0.0.1", "localhost")
    refusal = await _refusal(secured.kafka("SSL", bootstrap_servers=servers))
    assert "Hostname mismatch" in refusal


@pytest.mark.test_all
@pytest.mark.promise("in-broker-refuses-login")
async def test_a_password_that_is_changed_under_a_producer_is_told(
    secured: SecuredBroker, topic: str
) -> None:
    """Its events wait, and get through once it is right again; else they tell who was refused."""
    mechanism = "SCRAM-SHA-512"
    refusal = f"refused user '{USER}' by {mechanism}"
    kafka = secured.kafka("SASL_SSL", mechanism)
    settings = ProducerSettings(delivery_timeout=timedelta(seconds=2))
    async with IdempotentProducer(kafka) as patient, IdempotentProducer(kafka, settings) as hasty:
        assert isinstance(await (await patient.send(topic, b"1")), Persisted)
        while not isinstance(await (await hasty.send(topic, b"2")), Persisted):
            pass  # 2 s may be too short for a first connection
        secured.set_password(mechanism, "another")
        try:
            await asyncio.to_thread(secured.broker.stop)  # or their connections would last
            await asyncio.to_thread(secured.broker.start)
            waiting = await patient.send(topic, b"3")
            told = ""
            while refusal not in told:  # the broker may take longer than 2 s to refuse
                earlier = await (await hasty.send(topic, b"4"))
                assert isinstance(earlier, NotPersisted)
                told = earlier.reason
            outcome = await (await hasty.send(topic, b"5"))
        finally:
            secured.set_password(mechanism, PASSWORD)
        assert isinstance(outcome, NotPersisted)
        assert refusal in outcome.reason
        assert PASSWORD not in outcome.reason
        assert isinstance(await waiting, Persisted)
    values = _values(secured, topic)
    assert set(values) == {b"1", b"2", b"3"}
    assert (values.count(b"1"), values.count(b"3")) == (1, 1)


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


@pytest.mark.promise("in-password-settings")
def test_the_daemon_ends_at_once_when_its_login_is_refused(
    secured: SecuredBroker, tmp_path: Path
) -> None:
    """With status 3, and who was refused by what; its log holds no password."""
    with _daemon(secured, tmp_path, "refused", _WRONG) as daemon:
        daemon.process.wait(PATIENCE_S)
        daemon.kill()
        assert daemon.process.returncode == 3
        assert f"refused user '{USER}' by SCRAM-SHA-256" in daemon.log
        assert _WRONG not in daemon.log


def _valid_token() -> str:
    return token({"sub": USER, "iat": int(time.time()), "exp": int(time.time()) + 600})


@pytest.mark.promise("in-login-token-key")
async def test_a_token_lets_us_in(secured: SecuredBroker, topic: str, tmp_path: Path) -> None:
    """From code, which is asked at the login, and from a file, by the daemon's topic check, too."""
    asked = 0

    async def provide() -> str:
        nonlocal asked
        asked += 1
        return _valid_token()

    kafka = KafkaSettings(
        bootstrap_servers=secured.address("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
    )
    async with IdempotentProducer(kafka, token_provider=provide) as producer:
        await producer.send_and_wait(topic, b"1")
    assert asked > 0
    with pytest.raises(SettingsError, match="expects sasl_token_file"):
        await IdempotentProducer(kafka).start()
    file = tmp_path / "token"
    file.write_text(_valid_token() + "\n")
    with_file = kafka.model_copy(update={"sasl_token_file": file})
    await _send(with_file, topic)
    assert not await create_topic(with_file, topic, partitions=1, replication_factor=1)
    assert _values(secured, topic) == [b"1", b"1", b"2", b"3"]


@pytest.mark.promise("order-local-runner-needs")
@pytest.mark.parametrize("login", ["OAUTHBEARER", "SCRAM-SHA-512"])
def test_a_job_on_this_machine_logs_in(
    secured: SecuredBroker, topic: str, tmp_path: Path, login: str
) -> None:
    """Also by a token, which a job on Spark cannot."""
    if login == "OAUTHBEARER":
        file = tmp_path / "token"
        file.write_text(_valid_token())
        kafka = KafkaSettings(
            bootstrap_servers=secured.address("SASL_PLAINTEXT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=login,
            sasl_token_file=file,
        )
    else:
        kafka = secured.kafka("SASL_SSL", login)
    values = [b'{"at": %d}' % (1_700_000_000_000 + number) for number in (2, 0, 1)]
    asyncio.run(_fill(kafka, topic, values))
    settings = ReorderSettings(
        input_topics=(topic,),
        output_topic=f"{topic}.ordered",
        event_time="json:at",
        checkpoint=str(tmp_path / "state"),
    )
    reorder(kafka, settings, available_now=True, drain=True)
    assert _values(secured, settings.output_topic) == [values[1], values[2], values[0]]


async def _fill(kafka: KafkaSettings, topic: str, values: list[bytes]) -> None:
    async with IdempotentProducer(kafka) as producer:
        assert (await (await producer.send_many(topic, values))).persisted == len(values)


@pytest.mark.promise("in-token-oauthbearer-expired")
async def test_a_token_that_has_expired_is_refused_at_once(
    secured: SecuredBroker, topic: str
) -> None:
    """As a wrong password is; each login asks for a token, so one that is renewed lets us in."""
    now_s = int(time.time())
    tokens = [token({"sub": USER, "iat": now_s - 700, "exp": now_s - 600})]

    async def provide() -> str:
        return tokens[-1]

    kafka = KafkaSettings(
        bootstrap_servers=secured.address("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
    )
    began = time.monotonic()
    with pytest.raises(FatalError, match="refused our token by OAUTHBEARER"):
        await IdempotentProducer(kafka, token_provider=provide).start()
    assert time.monotonic() - began < _AT_ONCE_S
    tokens.append(_valid_token())
    async with IdempotentProducer(kafka, token_provider=provide) as producer:
        await producer.send_and_wait(topic, b"1")
    assert _values(secured, topic) == [b"1"]


@pytest.mark.promise("in-login-token-key")
async def test_a_key_may_have_a_password(secured: SecuredBroker, topic: str) -> None:
    """Without it nobody is asked on the terminal: the files that cannot be read are named."""
    files = secured.files
    given: dict[str, Any] = {"ssl_certificate": files.certificate, "ssl_key": files.locked_key}
    kafka = secured.kafka("SSL", None, **given, ssl_key_password=PASSWORD)
    mutual = kafka.model_copy(update={"bootstrap_servers": secured.address("MUTUAL")})
    await _send(mutual, topic)
    for wrong in ({}, {"ssl_key_password": "wrong"}):
        with pytest.raises(SettingsError, match="no PEM files") as caught:
            await IdempotentProducer(secured.kafka("SSL", None, **given, **wrong)).start()
        assert str(files.locked_key) in str(caught.value)
        assert "wrong" not in str(caught.value)

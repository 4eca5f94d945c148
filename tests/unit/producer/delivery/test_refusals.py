"""Which failures to connect will pass, and which somebody has to mend."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import errors as kafka_errors
from pydantic import ValidationError

from sequitur.base.retry import Backoff
from sequitur.errors import FatalError, RetriableError, SettingsError
from sequitur.kafka.connection_check import translated, why_not_connected
from sequitur.kafka.wire import Wire
from sequitur.producer import KafkaSettings
from sequitur.producer.delivery.leaders import LeaderFinder
from tests.support.fake_wire import FakeWire

if TYPE_CHECKING:
    from pathlib import Path

_LOGIN: dict[str, Any] = {
    "bootstrap_servers": "k:1",
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "me",
    "sasl_password": "tell-nobody",
}


def _caused_by(cause: Exception) -> Exception:
    error: Exception = kafka_errors.KafkaConnectionError("closed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.SaslAuthenticationFailed("Invalid username or password"),
        kafka_errors.UnsupportedSaslMechanismError(),
        kafka_errors.IllegalSaslStateError(),
        ValueError("Server sent wrong signature!"),
        _caused_by(kafka_errors.SaslAuthenticationFailed("no")),
    ],
)
def test_a_refused_login_is_fatal_and_names_mechanism_and_user(error: Exception) -> None:
    """Trying again would refuse again, and may lock the account."""
    told = why_not_connected(error, "k:1", KafkaSettings(**_LOGIN))
    assert isinstance(told, FatalError)
    assert str(told).startswith("k:1 refused user 'me' by PLAIN: ")
    assert "tell-nobody" not in str(told)


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLCertVerificationError("certificate verify failed"),
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        _caused_by(ssl.SSLError(1, "tlsv13 alert certificate required")),
    ],
)
def test_refused_tls_is_fatal(error: Exception) -> None:
    """Neither our files nor the broker's change by themselves."""
    told = why_not_connected(error, "k:1", KafkaSettings(bootstrap_servers="k:1"))
    assert isinstance(told, FatalError)
    assert str(told).startswith("k:1: ")
    assert "failed: " in str(told)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connect call failed"),
        TimeoutError(),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        _caused_by(ConnectionResetError(104, "reset by peer")),
        ValueError("not of a login"),
    ],
)
def test_what_a_restart_of_a_broker_does_is_retriable(error: Exception) -> None:
    """It goes away in the middle of TLS, too; the address says which broker it is."""
    told = why_not_connected(error, "k:1", KafkaSettings(bootstrap_servers="k:1"))
    assert isinstance(told, RetriableError)
    assert str(told).startswith("k:1: ")
    assert len(str(told)) > len("k:1: ")


def test_a_request_that_is_not_allowed_is_fatal() -> None:
    assert isinstance(translated(kafka_errors.ClusterAuthorizationFailedError()), FatalError)
    assert isinstance(translated(kafka_errors.NodeNotReadyError()), RetriableError)


async def test_no_broker_is_told_with_its_address() -> None:
    """The reason is the system's own, not that of the client library, which has none."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        servers = f"127.0.0.1:{unused.getsockname()[1]}"
        kafka = KafkaSettings(bootstrap_servers=servers)
        wire = Wire(kafka, client_id="test", request_timeout=timedelta(seconds=1))
        with pytest.raises(RetriableError, match=rf"^{servers}: .*Connect call failed"):
            await wire.start()


class _RefusingWire(FakeWire):
    """Its broker is there, and rejects the login."""

    attempts = 0

    async def connect(self, _node: int) -> bool:
        self.attempts += 1
        raise FatalError("k:1 refused user 'me' by PLAIN")


async def test_who_waits_for_a_broker_hears_why() -> None:
    """A broker that refuses us is tried again: the password may be set right."""
    wire = _RefusingWire()
    wire.connected = False
    tried = asyncio.Event()

    def look_again() -> None:
        leaders.leader("t", 0)
        if wire.attempts == 3:
            tried.set()

    backoff = Backoff(initial_ms=1, maximum_ms=1)
    real_wire: Any = wire
    failures: list[Exception] = []
    leaders = LeaderFinder(
        real_wire, backoff, Random(0), on_change=look_again, on_failure=failures.append
    )
    assert leaders.leader("t", 0) == "broker 1 cannot be reached"
    await tried.wait()
    leaders.stop()
    told = "broker 1 cannot be reached: k:1 refused user 'me' by PLAIN"
    assert leaders.leader("t", 0) == told
    assert failures == []


def test_a_pem_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing, other = tmp_path / "missing.pem", tmp_path / "other.pem"
    with pytest.raises(ValidationError, match=r"ssl_ca\n.*there is no such file"):
        KafkaSettings(bootstrap_servers="k:1", security_protocol="SSL", ssl_ca=missing)
    other.write_text("no certificate")
    kafka = KafkaSettings(bootstrap_servers="k:1", security_protocol="SSL", ssl_ca=other)
    with pytest.raises(SettingsError, match=f"ssl_ca = {other}"):
        kafka.aiokafka()


@pytest.mark.promise("in-password-settings")
def test_settings_that_do_not_fit_together_do_not_show_the_password() -> None:
    """Pydantic prints the input of what it refuses, unless it is told not to."""
    with pytest.raises(ValidationError) as refused:
        KafkaSettings(**{**_LOGIN, "sasl_mechanism": None})
    assert "tell-nobody" not in str(refused.value)
    assert "tell-nobody" not in repr(KafkaSettings(**_LOGIN))

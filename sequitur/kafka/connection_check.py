"""Whether there is a connection, and in words of errors why not.

Errors of connections are retriable, or a person has to correct something. aiokafka does not say why
a broker cannot be connected to, so it is connected to once more.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

from aiokafka import errors as kafka_errors
from aiokafka.conn import create_conn
from aiokafka.protocol.admin import SaslAuthenticateRequest

from sequitur.errors import (
    BrokerError,
    FatalError,
    RequestUnknownError,
    RetriableError,
)
from sequitur.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aiokafka.conn import AIOKafkaConnection

    from sequitur.kafka.settings import KafkaSettings


_REFUSED_BY_CLIENT: Final = (
    kafka_errors.AuthenticationFailedError,
    kafka_errors.AuthenticationMethodNotSupported,
)
"""What aiokafka raises without an error code from the broker."""
_BROKER_NOT_PROVEN: Final = (KeyError, ValueError)
"""aiokafka raises these if a broker fails to prove itself in a SCRAM login."""
_BROKEN_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""TLS errors when a broker goes away during the handshake."""


def translated(error: BaseException) -> BrokerError:
    """Return aiokafka's error for a request as one of our errors."""
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        return RequestUnknownError(_sentence(error))
    return (FatalError if _is_refused(error) else RetriableError)(_sentence(error))


def why_not_connected(error: BaseException, address: str, kafka: KafkaSettings) -> BrokerError:
    """Return an error of connecting as one of our errors; fatal if TLS or the login failed."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return FatalError(
                f"{address}: certificate verification failed: {_sentence(cause)} (ssl_ca is "
                f"{kafka.ssl_ca or 'the system'})"
            )
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _BROKEN_OFF):
            return FatalError(f"{address}: TLS failed: {_sentence(cause)}")
        if kafka.uses_sasl and (_is_refused(cause) or isinstance(cause, _BROKER_NOT_PROVEN)):
            user = "our token" if kafka.sasl_username is None else f"user {kafka.sasl_username!r}"
            who = f"{user} by {kafka.sasl_mechanism}"
            return FatalError(f"{address} refused {who}: {_sentence(cause)}")
    return RetriableError(f"{address}: {_sentence(error)}")


def _is_refused(error: BaseException) -> bool:
    """Return whether a login was refused: by the client, or by a broker's error code."""
    if isinstance(error, kafka_errors.BrokerResponseError):
        return action_of(Request.LOGIN, error.errno) is Action.FAIL
    return isinstance(error, _REFUSED_BY_CLIENT)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _sentence(error: BaseException) -> str:
    return str(error) or type(error).__name__


NOT_CONNECTED: Final = (kafka_errors.KafkaError, OSError, TimeoutError, ValueError, KeyError)
"""Errors of connecting. For the last two, aiokafka refuses a broker in a SCRAM login."""
_TOKEN_REFUSAL_SEEN: Final = b"\x01"


async def why_no_connection(
    addresses: Iterable[tuple[str, int]],
    kafka: KafkaSettings,
    *,
    client_id: str,
    timeout_ms: int,
    security: Mapping[str, Any],
) -> BrokerError:
    """Return the error of the first address that refuses; without one, that of the last.

    A refused login comes before anything that may pass, such as another broker that is down.
    """
    found: BrokerError = RetriableError("it works at the second attempt")
    for host, port in addresses:
        try:
            connection = await create_conn(
                host, port, client_id=client_id, request_timeout_ms=timeout_ms, **security
            )
            try:
                if kafka.sasl_mechanism == "OAUTHBEARER":
                    await _check_token(connection)
            finally:
                connection.close()
        except (*NOT_CONNECTED, EOFError) as error:
            found = why_not_connected(error, f"{host}:{port}", kafka)
        if isinstance(found, FatalError):
            break
    return found


async def _check_token(connection: AIOKafkaConnection) -> None:
    """See whether the broker has taken the token of a login that seemed to work.

    The broker refuses a token by a challenge, and sends the error after the client's next message
    (RFC 7628, 3.2.3); aiokafka takes the challenge for success.
    """
    answer = await connection.send(SaslAuthenticateRequest(_TOKEN_REFUSAL_SEEN))
    refused = kafka_errors.SaslAuthenticationFailed
    if answer.error_code == refused.errno:
        raise refused(answer.error_message)

"""The errors of connections in our own tree: which will pass, and which somebody has to mend."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from aiokafka import errors as kafka_errors

from sequitur.producer._errors import BrokerError, FatalError, RetriableError
from sequitur.producer.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.producer.settings import KafkaSettings

_REFUSED_BY_CLIENT: Final = (
    kafka_errors.AuthenticationFailedError,
    kafka_errors.AuthenticationMethodNotSupported,
)
"""What aiokafka raises without a code of the broker's."""
_BROKER_NOT_PROVEN: Final = (KeyError, ValueError)
"""SCRAM proves the broker, too: aiokafka raises these when it knows no more than we do."""
_BROKEN_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""TLS errors of a broker that goes away in the middle of it."""


def translated(error: BaseException) -> BrokerError:
    """An error of a request in our own tree."""
    is_fatal = _is_refused(error) or isinstance(error, kafka_errors.IncompatibleBrokerVersion)
    return (FatalError if is_fatal else RetriableError)(_sentence(error))


def why_not_connected(error: BaseException, address: str, kafka: KafkaSettings) -> BrokerError:
    """An error of a connection in our own tree: fatal when it is the broker, or we, who refuse.

    Args:
        error: What was raised while connecting, TLS and SASL included.
        address: The broker's, as host:port.
        kafka: What we came with; the user is named, the password never.
    """
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return FatalError(
                f"{address}: its certificate is refused: {_sentence(cause)}; "
                f"trusted is what ssl_ca says: {kafka.ssl_ca or 'the system'}"
            )
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _BROKEN_OFF):
            return FatalError(f"{address}: TLS is refused: {_sentence(cause)}")
        if kafka.uses_sasl and (_is_refused(cause) or isinstance(cause, _BROKER_NOT_PROVEN)):
            user = "our token" if kafka.sasl_username is None else f"user {kafka.sasl_username!r}"
            who = f"{user} by {kafka.sasl_mechanism}"
            return FatalError(f"{address} refused {who}: {_sentence(cause)}")
    return RetriableError(f"{address}: {_sentence(error)}")


def _is_refused(error: BaseException) -> bool:
    """Whether a login was refused: by the client, or by a code of the broker's."""
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

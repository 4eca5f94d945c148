"""Find out why a broker cannot be connected to: aiokafka does not say, so connect once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka import errors as kafka_errors
from aiokafka.conn import create_conn
from aiokafka.protocol.admin import SaslAuthenticateRequest

from sequitur.errors import BrokerError, FatalError, RetriableError
from sequitur.kafka.connection_errors import why_not_connected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiokafka.conn import AIOKafkaConnection

    from sequitur.kafka.settings import KafkaSettings

NOT_CONNECTED: Final = (kafka_errors.KafkaError, OSError, TimeoutError, ValueError, KeyError)
"""What connecting raises; the last two are how aiokafka refuses a broker in a SCRAM login."""
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

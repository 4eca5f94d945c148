"""InitProducerId (API 22) in version 4 (KIP-360): a producer id, or the next epoch of one held.

aiokafka has version 0 only, in which the producer cannot say which id and epoch it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactString, Int16, Int32, Int64, Schema, TaggedFields

if TYPE_CHECKING:
    from sequitur.kafka.identity import Identity

_NO_TRANSACTIONS_MS: Final = 60_000
"""The timeout of transactions where there are none; brokers refuse more than their own limit."""
_NONE: Final = -1


class InitProducerIdResponseV4(Response):  # type: ignore[misc]  # aiokafka is untyped
    """The producer id and epoch to go on with."""

    API_KEY = 22
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class InitProducerIdRequestV4(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    """The transactional id, and the identity that its holder has."""

    FLEXIBLE_VERSION = True
    API_KEY = 22
    API_VERSION = 4
    RESPONSE_TYPE = InitProducerIdResponseV4
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class InitProducerIdRequest(
    Request[InitProducerIdRequestV4]  # type: ignore[misc]  # aiokafka is untyped
):
    """Ask for an identity."""

    API_KEY = 22

    def __init__(
        self,
        transactional_id: str | None,
        held: Identity | None = None,
    ) -> None:
        self._transactional_id = transactional_id
        self._held = held

    def build(self, request_struct_class: type[InitProducerIdRequestV4]) -> Any:
        """Return the request in the version that the broker knows."""
        held = (_NONE, _NONE) if self._held is None else (self._held.producer_id, self._held.epoch)
        return request_struct_class(self._transactional_id, _NO_TRANSACTIONS_MS, *held, {})

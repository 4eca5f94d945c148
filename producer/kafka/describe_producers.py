"""DescribeProducers (API 61, KIP-664): what a partition's leader remembers of its producers.

aiokafka does not have this request; it is put together here from aiokafka's protocol classes.
"""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)


class DescribeProducersResponseV0(Response):  # type: ignore[misc]  # aiokafka is untyped
    """The producers of each partition that was asked for."""

    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("error_message", CompactString("utf-8")),
                        (
                            "active_producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("current_txn_start_offset", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequestV0(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    """Which partitions to tell of."""

    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = DescribeProducersResponseV0
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("partition_indexes", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequest(
    Request[DescribeProducersRequestV0]  # type: ignore[misc]  # aiokafka is untyped
):
    """Ask for the producers of one partition; to be sent to its leader."""

    API_KEY = 61

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    def build(self, request_struct_class: type[DescribeProducersRequestV0]) -> Any:
        """The request in the version that the broker knows."""
        return request_struct_class([(self._topic, [self._partition], {})], {})

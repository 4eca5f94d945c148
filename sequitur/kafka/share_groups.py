"""DescribeShareGroupOffsets (API 90, KIP-932): from which offsets on share groups need records.

Neither aiokafka nor librdkafka has this request; it is put together from aiokafka's classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

from sequitur.errors import RequestUnknownError, RetriableError
from sequitur.kafka.error_codes import Action, action_of, meaning_of
from sequitur.kafka.error_codes import Request as Asked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class DescribeShareGroupOffsetsResponseV0(Response):  # type: ignore[misc]  # aiokafka is untyped
    """The first offset of each partition that a group has not done with."""

    API_KEY = 90
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("group_id", CompactString("utf-8")),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        ("topic_id_high", Int64),
                        ("topic_id_low", Int64),
                        (
                            "partitions",
                            CompactArray(
                                ("partition_index", Int32),
                                ("start_offset", Int64),
                                ("leader_epoch", Int32),
                                ("error_code", Int16),
                                ("error_message", CompactString("utf-8")),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeShareGroupOffsetsRequestV0(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    """The groups whose offsets are asked for; of all their topics where none are named."""

    FLEXIBLE_VERSION = True
    API_KEY = 90
    API_VERSION = 0
    RESPONSE_TYPE = DescribeShareGroupOffsetsResponseV0
    SCHEMA = Schema(
        (
            "groups",
            CompactArray(
                ("group_id", CompactString("utf-8")),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeShareGroupOffsetsRequest(
    Request[DescribeShareGroupOffsetsRequestV0]  # type: ignore[misc]  # aiokafka is untyped
):
    """Ask for the offsets of a share group; to be sent to the broker that coordinates it."""

    API_KEY = 90

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[DescribeShareGroupOffsetsRequestV0]) -> Any:
        """Return the request in the version that the broker knows."""
        return request_struct_class([(self._group, None, {})], {})


async def share_offsets(
    ask: Callable[[Any], Awaitable[Any]], group: str
) -> dict[tuple[str, int], int]:
    """Return the first offset that a share group needs of each partition that it has begun to read.

    Where that is not told it is 0. A group of which nothing is told has none.
    """
    try:
        answer = await ask(DescribeShareGroupOffsetsRequest(group))
    except RequestUnknownError:
        return {}
    found: dict[tuple[str, int], int] = {}
    for _group, topics, code, _message, _tags in answer.groups:
        match action_of(Asked.GROUPS, code):
            case Action.DONE:
                for topic, _high, _low, partitions, _more in topics:
                    for partition, offset, _epoch, refused, _why, _rest in partitions:
                        found[topic, partition] = 0 if refused else max(offset, 0)
            case Action.RETRY:
                raise RetriableError(f"group {group!r}: {meaning_of(code).name}")
            case _:
                return {}
    return found

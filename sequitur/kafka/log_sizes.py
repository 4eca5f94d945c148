"""How many bytes the log of a partition has on a broker: DescribeLogDirs (API 35).

Neither aiokafka nor librdkafka's admin client has this request. It is put together here from
aiokafka's protocol classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Int64, Schema, String

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping


async def log_sizes(
    ask: Callable[[Any], Awaitable[Any]], partitions: Mapping[str, Iterable[int]]
) -> dict[tuple[str, int], int]:
    """Return the bytes of partitions' logs on a broker."""
    answer = await ask(DescribeLogDirsRequest(partitions))
    return {
        (topic, partition): int(size)
        for code, _folder, topics in answer.results
        for topic, logs in topics
        for partition, size, _lag, is_moving_here in logs
        if not code and not is_moving_here
    }


class DescribeLogDirsResponseV1(Response):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 35
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            Array(
                ("error_code", Int16),
                ("log_dir", String("utf-8")),
                (
                    "topics",
                    Array(
                        ("name", String("utf-8")),
                        (
                            "partitions",
                            Array(
                                ("partition_index", Int32),
                                ("partition_size", Int64),
                                ("offset_lag", Int64),
                                ("is_future_key", Boolean),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )


class DescribeLogDirsRequestV1(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 35
    API_VERSION = 1
    RESPONSE_TYPE = DescribeLogDirsResponseV1
    SCHEMA = Schema(
        ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
    )


class DescribeLogDirsRequest(
    Request[DescribeLogDirsRequestV1]  # type: ignore[misc]  # aiokafka is untyped
):
    """Ask for the logs of partitions. The request goes to a broker that has them."""

    API_KEY = 35

    def __init__(self, partitions: Mapping[str, Iterable[int]]) -> None:
        self._partitions = partitions

    def build(self, request_struct_class: type[DescribeLogDirsRequestV1]) -> Any:
        return request_struct_class([(topic, list(one)) for topic, one in self._partitions.items()])

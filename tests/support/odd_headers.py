"""Records with a header whose name is no UTF-8, which this machine's clients do not send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest

from sequitur.kafka.record_batch import NO_STAMP, new_builder, stamped

if TYPE_CHECKING:
    from collections.abc import Sequence

LATIN_1: Final = "éé".encode("latin-1")
READ_BY_JAVA: Final = "\ufffd\ufffd"
"""What Java makes of that name."""


async def send_odd_headers(
    address: str,
    topic: str,
    values: Sequence[bytes],
    *,
    partition: int = 0,
    plain: int = 0,
    name: bytes = LATIN_1,
) -> None:
    """Write records with a header; its name is any bytes, but for that of the first ones.

    Args:
        address: The broker's.
        topic: The topic.
        values: The records' values.
        partition: Where they go.
        plain: So many of them have one called `e`.
        name: The name of the others' header.
    """
    builder = new_builder(1 << 14)
    for number, value in enumerate(values):
        key = "e" if number < plain else "#" * len(name)
        builder.append(number, 1, b"key", value, [(key, b"1")])
    batch = stamped(bytes(builder.build()).replace(b"#" * len(name), name), NO_STAMP)
    client = AIOKafkaClient(bootstrap_servers=address)
    try:
        await client.bootstrap()
        (node,) = (broker.nodeId for broker in client.cluster.brokers())
        request = ProduceRequest(None, 1, 5_000, [(topic, [(partition, batch)])])
        ((_, ((_, code, *_),)),) = (await client.send(node, request)).topics
        assert code == 0
    finally:
        await client.close()

"""librdkafka's admin client for several that ask: one handle, and none while nobody asks.

A handle is a connection to each broker, and five threads and more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from sequitur.kafka.settings import KafkaSettings

IDLE_S: Final = 10.0


class SharedAdmin:
    """Calls of an `AdminClient`, which is made for the first one."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._client: AdminClient | None = None
        self._used_s = 0.0

    def __getattr__(self, name: str) -> Any:
        client = self._client
        if client is None:
            client = self._client = AdminClient(self._kafka.librdkafka())
        self._used_s = time.monotonic()
        return getattr(client, name)

    def let_go(self, idle_s: float = 0.0) -> None:
        """Close the client if it was not asked for so long; the next call makes another."""
        if time.monotonic() - self._used_s >= idle_s:
            self._client = None

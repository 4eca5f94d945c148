"""librdkafka's admin client, shared by all who ask, and closed while nobody asks.

A client is a connection to each broker, and five threads or more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from sequitur.kafka.settings import KafkaSettings

IDLE_S: Final = 10.0


class SharedAdmin:
    """Calls of an `AdminClient`. The first call makes it."""

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
        """Close the client if it was unused for `idle_s`. The next call makes another."""
        if time.monotonic() - self._used_s >= idle_s:
            self._client = None

"""The control topic of backlog quotas, written by a client that shares no code with ours."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaError, NewTopic

from tests.support.waiting import PATIENCE_S

_TIMEOUT_S: Final = PATIENCE_S
_HOUR_MS: Final = 3_600_000


class ControlTopic:
    """Writes control records to a broker.

    Args:
        bootstrap_servers: The broker.
        prefix: The installation's.
        creates: Whether to create the topic, if it is not there.
    """

    def __init__(
        self, bootstrap_servers: str, prefix: str = "sequitur", *, creates: bool = True
    ) -> None:
        self.name = f"{prefix}-subscriptions"
        self._options: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
        }
        self._producer = Producer(self._options)
        if creates:
            self.create()

    def create(self) -> None:
        new = NewTopic(
            self.name,
            num_partitions=1,
            replication_factor=1,
            config={"cleanup.policy": "compact"},
        )
        admin = AdminClient(self._options)
        try:
            admin.create_topics([new])[self.name].result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def write(self, topic: str, policy: str | None, **figures: Any) -> None:
        """Write the state of a topic, issued now; returns once the broker has it."""
        state = {
            "format": 1,
            "issued_ms": int(time.time() * 1000),
            "valid_for_ms": _HOUR_MS,
            "subscription": "billing",
            "backlog_bytes": 12 << 20,
            "limit_bytes": 10 << 20,
        }
        if policy is not None:
            state["policy"] = policy
        self.write_raw(key_of(topic), json.dumps(state | figures).encode())

    def lift(self, topic: str) -> None:
        self.write_raw(key_of(topic), None)

    def write_raw(self, key: bytes, value: bytes | None) -> None:
        self._producer.produce(self.name, key=key, value=value)
        assert self._producer.flush(_TIMEOUT_S) == 0

    @contextlib.contextmanager
    def aborted(self) -> Any:
        outside = self._producer
        self._producer = Producer({**self._options, "transactional.id": "an-aborted-checker"})
        self._producer.init_transactions(_TIMEOUT_S)
        self._producer.begin_transaction()
        yield
        self._producer.abort_transaction(_TIMEOUT_S)
        self._producer = outside


def key_of(topic: str) -> bytes:
    return json.dumps(["backlog", topic], separators=(",", ":")).encode()

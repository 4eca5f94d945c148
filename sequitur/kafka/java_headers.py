"""Headers that librdkafka cannot give, since a name is no UTF-8: read by Java's client.

Spark's source reads by that client, too: what of a name is no UTF-8 is U+FFFD there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from sequitur.errors import UnansweredError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.records import Headers
    from sequitur.kafka.settings import KafkaSettings

_POLL_MS: Final = 100
_SILENCE_S: Final = 60.0
_BYTES: Final = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


class JavaHeaders:
    """Read headers of committed records. One thread at a time."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the way to Java's client
        self._kafka = kafka
        self._consumer: Any = None
        self._place: SourcePartition | None = None
        self._ahead: dict[int, Headers] = {}

    def of(self, where: SourcePartition, offset: int) -> Headers:
        """Return those of a record; quickly, where it is behind the one before."""
        try:
            if self._place != where or offset not in self._ahead:
                self._seek(where, offset)
            until_s = time.monotonic() + _SILENCE_S
            while offset not in self._ahead:
                if time.monotonic() > until_s:
                    raise UnansweredError(f"{where}, offset {offset}: no record for a minute")
                self._poll()
        except Py4JError as error:
            told = str(error).partition("\n")[0]
            raise UnansweredError(f"{where}, offset {offset}, cannot be read: {told}") from error
        return self._ahead.pop(offset)

    def close(self) -> None:
        """Let go of the connection."""
        if self._consumer is not None:
            self._consumer.close()

    def _seek(self, where: SourcePartition, offset: int) -> None:
        if self._consumer is None:
            config = self._jvm.java.util.HashMap()
            told = {
                **self._kafka.java(),
                "key.deserializer": _BYTES,
                "value.deserializer": _BYTES,
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
            }
            for name, value in told.items():
                config.put(name, value)
            self._consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(config)
        place = self._jvm.org.apache.kafka.common.TopicPartition(*where)
        places = self._jvm.java.util.ArrayList()
        places.add(place)
        self._consumer.assign(places)
        self._consumer.seek(place, offset)
        self._place, self._ahead = where, {}

    def _poll(self) -> None:
        wait = self._jvm.java.time.Duration.ofMillis(_POLL_MS)
        for place in self._consumer.assignment():
            for record in self._consumer.poll(wait).records(place):
                headers = [(one.key(), one.value()) for one in record.headers().toArray()]
                self._ahead[record.offset()] = headers

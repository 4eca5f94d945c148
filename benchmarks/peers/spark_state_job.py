"""Spark's counter with a timer a key, from Kafka to Kafka: `transformWithState`, and in pandas.

    python -m benchmarks.peers.spark_state_job BOOTSTRAP_SERVERS INPUT OUTPUT FOLDER DELAY_S
                                               pandas|rows once|each AFTER_MS

State in RocksDB, timers of event time; `pandas` has a key's rows as data frames, `rows` one by one.
It does what `benchmarks.keyed_topology` does, but in no order and at least once; rows behind the
watermark are dropped. Spark hands a key's rows over a batch at a time, so state and timer are
written once a key and batch. It ends with what is in its topic now; timers beyond the last
watermark stay. Prints one line of JSON: the seconds from the start of the query to its end, and
how many rows were `dropped`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.peers import spark_kafka
from sequitur.pipelines.session import build_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

_OPTIONS: Final = {
    **spark_kafka.SESSION_OPTIONS,
    "spark.sql.shuffle.partitions": str(os.cpu_count()),
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}


class _Count(StatefulProcessor):
    """Counts events from a key's first one to its timer."""

    def __init__(self, *, sets_each: bool, after_ms: int) -> None:
        self._sets_each = sets_each
        self._after_ms = after_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("count", "count long, end_ms long")

    def count(self, events: int, first_ms: int, last_ms: int) -> None:
        """Count a key's events of a batch."""
        count, before_ms = self._state.get() or (0, 0)
        end_ms = before_ms
        if self._sets_each:
            end_ms = max(before_ms, last_ms + self._after_ms)
        elif not count:
            end_ms = first_ms + self._after_ms
        if end_ms != before_ms:
            if before_ms:
                self._handle.deleteTimer(before_ms)
            self._handle.registerTimer(end_ms)
        self._state.update((count + events, end_ms))

    def handleExpiredTimer(  # noqa: N802 - Spark's names
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Any]:
        del key, timerValues, expiredTimerInfo
        self._state.clear()
        return iter(())


class CountFrames(_Count):
    """Takes data frames."""

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Count events, and pass them on."""
        del key, timerValues
        for frame in rows:
            times = frame["occurred_at"]
            self.count(len(frame), int(times.iloc[0]), int(times.max()))
            yield frame[["key", "value"]]


class CountRows(_Count):
    """Takes rows."""

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """Count events, and pass them on."""
        del key, timerValues
        arrived = list(rows)
        times = [row.occurred_at for row in arrived]
        self.count(len(arrived), times[0], max(times))
        for row in arrived:
            yield Row(key=row.key, value=row.value)


def main() -> None:
    """Run the query on what is in its topic now."""
    brokers, source, sink, folder, delay_s, kind, timer, after_ms = sys.argv[1:]
    spark = build_session("spark state", options=_OPTIONS)
    text = F.col("value").cast("string")
    arrived = (
        spark_kafka.arrived(spark, brokers, source)
        .select("key", "value", F.get_json_object(text, "$.occurred_at").alias("occurred_at"))
        .withColumn("occurred_at", F.col("occurred_at").cast("long"))
        .withColumn("at", F.timestamp_millis("occurred_at"))
        .withWatermark("at", f"{delay_s} seconds")
    )
    keys = arrived.groupBy("key")
    given: dict[str, Any] = {"sets_each": timer == "each", "after_ms": int(after_ms)}
    shape = ("key binary, value binary", "Append", "EventTime")
    counted = (
        keys.transformWithStateInPandas(CountFrames(**given), *shape)
        if kind == "pandas"
        else keys.transformWithState(CountRows(**given), *shape)
    )
    query, seconds = spark_kafka.run(counted, brokers, sink, folder)
    dropped = sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )
    print(json.dumps({"seconds": seconds, "dropped": dropped}))


if __name__ == "__main__":
    main()

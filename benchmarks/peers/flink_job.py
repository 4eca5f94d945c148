"""Flink's ways to event-time order, and its windows, as SQL from Kafka to Kafka.

It runs in the peers' environment.

    python flink_job.py KIND bounded|steady BOOTSTRAP_SERVERS INPUT OUTPUT CONNECTOR_JAR
                        FUNCTION_JAR FOLDER DELAY_S

- keyed: an `OVER` aggregate ordered by time, which sorts each key's rows as the watermark passes;
- global: `ORDER BY` the time, which sorts all rows, and so has one task;
- ptf: a process table function (InOrder.java) whose argument has `ORDER BY`; for steady only, since
  Flink 2.3 fails at the end of a bounded input ("Received element after endOfInput");
- tumbling-count, tumbling-mean, session, join: the windows of `benchmarks.windows`, by key.

Bounded, it checkpoints every 10 s into FOLDER, puts out at least once, and ends with what is in its
topic now. It prints one line of JSON: the seconds from the moment the job was submitted, its
cluster up, until it ended with every row acknowledged. Steady, it checkpoints every second, puts
out exactly once, and goes on until it is ended; events have a `number`.
"""

from __future__ import annotations

import json
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

_ROW = "hostname STRING, cpu INT, `usage` DOUBLE, occurred_at BIGINT"
_FIELDS = "hostname, cpu, `usage`, occurred_at"
_GAP = "2"
"""Of sessions and of the join, as in `benchmarks.windows_topology`; in seconds."""
_TUMBLED = (
    "TABLE(TUMBLE(TABLE arrived, DESCRIPTOR(ts), INTERVAL '10' SECOND)) "
    "GROUP BY k, window_start, window_end"
)
_KINDS = {
    "keyed": (
        f"{_ROW}, n BIGINT",
        (
            f"SELECT k, {_FIELDS}, COUNT(*) OVER (PARTITION BY hostname, cpu ORDER BY ts "
            "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW){number} FROM arrived"
        ),
    ),
    "global": (_ROW, f"SELECT k, {_FIELDS}{{number}} FROM arrived ORDER BY ts"),
    "ptf": (
        _ROW,
        (
            f"SELECT k, {_FIELDS}{{number}} FROM "
            "in_order(arrived => TABLE arrived PARTITION BY k ORDER BY ts)"
        ),
    ),
    "tumbling-count": ("`count` BIGINT", f"SELECT k, COUNT(*) FROM {_TUMBLED}"),
    "tumbling-mean": (
        "`mean` DOUBLE, `count` BIGINT",
        f"SELECT k, AVG(`usage`), COUNT(*) FROM {_TUMBLED}",
    ),
    "session": (
        "`count` BIGINT",
        (
            "SELECT k, COUNT(*) FROM TABLE(SESSION(TABLE arrived PARTITION BY k, DESCRIPTOR(ts), "
            f"INTERVAL '{_GAP}' SECOND)) GROUP BY k, window_start, window_end"
        ),
    ),
    "join": (
        "left_ms BIGINT, right_ms BIGINT",
        (
            "SELECT l.k, l.occurred_at, r.occurred_at "
            "FROM (SELECT * FROM arrived WHERE MOD(occurred_at, 2) = 0) AS l, "
            "(SELECT * FROM arrived WHERE MOD(occurred_at, 2) = 1) AS r "
            f"WHERE l.k = r.k AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '{_GAP}' SECOND"
        ),
    ),
}
"""What is put out of each kind, beside the key, and how it is selected."""
# The key goes through as it is, so that a key's rows share a partition behind the job, too.
_KEY = "'key.format' = 'raw', 'key.fields' = 'k', 'value.fields-include' = 'EXCEPT_KEY'"


def main() -> None:
    """Run one job."""
    kind, mode, brokers, source, sink, connector, function, folder, delay_s = sys.argv[1:]
    is_steady = mode == "steady"
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": "1 s" if is_steady else "10 s",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder}",
        "pipeline.jars": f"file://{connector}",
    }.items():
        table.get_config().set(name, value)
    number, numbered = (", number", ", number BIGINT") if is_steady else ("", "")
    bounded = "" if is_steady else "'scan.bounded.mode' = 'latest-offset', "
    table.execute_sql(
        f"CREATE TABLE arrived (k STRING, {_ROW}{numbered}, "
        f"ts AS TO_TIMESTAMP_LTZ(occurred_at, 3), "
        f"WATERMARK FOR ts AS ts - INTERVAL '{delay_s}' SECOND) WITH ('connector' = 'kafka', "
        f"'topic' = '{source}', 'properties.bootstrap.servers' = '{brokers}', "
        f"'properties.group.id' = 'bench', 'scan.startup.mode' = 'earliest-offset', "
        f"{bounded}'value.format' = 'json', {_KEY})"
    )
    once = (
        f"'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{sink}', "
        "'properties.transaction.timeout.ms' = '600000', "
        if is_steady
        else ""
    )
    columns, select = _KINDS[kind]
    table.execute_sql(
        f"CREATE TABLE ordered (k STRING, {columns}{numbered}) WITH ('connector' = 'kafka', "
        f"'topic' = '{sink}', 'properties.bootstrap.servers' = '{brokers}', "
        "'properties.compression.type' = 'lz4', 'properties.linger.ms' = '5', "
        f"'properties.batch.size' = '262144', {once}'value.format' = 'json', {_KEY})"
    )
    if kind == "ptf":
        table.execute_sql(
            f"CREATE TEMPORARY FUNCTION in_order AS 'InOrder' USING JAR 'file://{function}'"
        )
    job = table.execute_sql(f"INSERT INTO ordered {select.format(number=number)}")
    submitted_s = time.monotonic()
    job.wait()
    ended_s = time.monotonic()
    print(json.dumps({"seconds": ended_s - submitted_s}))


if __name__ == "__main__":
    main()

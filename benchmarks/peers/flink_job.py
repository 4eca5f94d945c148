"""Flink's way to event-time order, as SQL from Kafka to Kafka; runs in the peers' environment.

    python flink_job.py keyed|global BOOTSTRAP_SERVERS INPUT OUTPUT CONNECTOR_JAR FOLDER DELAY_S

- keyed: an `OVER` aggregate ordered by time, which sorts each key's rows as the watermark passes;
- global: `ORDER BY` the time, which sorts all rows, and so has one task.

Checkpoints every 10 s into FOLDER. Prints one line of JSON: the seconds from the moment the job was
submitted, its cluster up, until it ended with every row acknowledged.
"""

from __future__ import annotations

import json
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

_ROW = "hostname STRING, cpu INT, `usage` DOUBLE, occurred_at BIGINT"
_FIELDS = "hostname, cpu, `usage`, occurred_at"
# The key goes through as it is, so that a key's rows share a partition behind the job, too.
_KEY = "'key.format' = 'raw', 'key.fields' = 'k', 'value.fields-include' = 'EXCEPT_KEY'"
_SELECTS = {
    "keyed": f"SELECT k, {_FIELDS}, COUNT(*) OVER (PARTITION BY hostname, cpu ORDER BY ts "
    "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM arrived",
    "global": f"SELECT k, {_FIELDS} FROM arrived ORDER BY ts",
}


def main() -> None:
    """Run one job to the end of what is in its topic now."""
    kind, brokers, source, sink, connector, folder, delay_s = sys.argv[1:]
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder}",
        "pipeline.jars": f"file://{connector}",
    }.items():
        table.get_config().set(name, value)
    table.execute_sql(
        f"CREATE TABLE arrived (k STRING, {_ROW}, ts AS TO_TIMESTAMP_LTZ(occurred_at, 3), "
        f"WATERMARK FOR ts AS ts - INTERVAL '{delay_s}' SECOND) WITH ('connector' = 'kafka', "
        f"'topic' = '{source}', 'properties.bootstrap.servers' = '{brokers}', "
        f"'properties.group.id' = 'bench', 'scan.startup.mode' = 'earliest-offset', "
        f"'scan.bounded.mode' = 'latest-offset', 'value.format' = 'json', {_KEY})"
    )
    counted = ", n BIGINT" if kind == "keyed" else ""
    table.execute_sql(
        f"CREATE TABLE ordered (k STRING, {_ROW}{counted}) WITH ('connector' = 'kafka', "
        f"'topic' = '{sink}', 'properties.bootstrap.servers' = '{brokers}', "
        "'properties.compression.type' = 'lz4', 'properties.linger.ms' = '5', "
        f"'properties.batch.size' = '262144', 'value.format' = 'json', {_KEY})"
    )
    job = table.execute_sql(f"INSERT INTO ordered {_SELECTS[kind]}")
    submitted_s = time.monotonic()
    job.wait()
    ended_s = time.monotonic()
    print(json.dumps({"seconds": ended_s - submitted_s}))


if __name__ == "__main__":
    main()

"""Ordered rows into a database of your own, each once: the reorder job, step by step.

The job reads a topic, restores event-time order, and writes the ordered topic. Beside that it gives
each step's rows to `Readings.add`, which puts them into SQLite together with the step's id, in one
transaction of the database. A step that is given again, after a crash, is there already.

Run it, kill it whenever you like, and run it again::

    python ordered_steps.py TOPIC ORDERED --kafka 127.0.0.1:9092 --checkpoint state --db rows.sqlite
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from sequitur import KafkaSettings, ReorderSettings
from sequitur.spark import reorder

if TYPE_CHECKING:
    from sequitur.spark import OrderedStep


class Readings:
    """A table of rows in their order, and the ids of the steps that are in it."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS steps (id TEXT PRIMARY KEY)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS readings (at INTEGER, key BLOB, value BLOB)"
            )

    def add(self, step: OrderedStep) -> None:
        """Add the rows of a step, unless they are there."""
        with closing(sqlite3.connect(self._path)) as database, database:
            added = database.execute("INSERT OR IGNORE INTO steps VALUES (?)", (step.id,))
            if added.rowcount == 0:
                return
            for partition in range(step.partitions):
                for rows in step.tables(partition):
                    columns = (rows[name].to_pylist() for name in ("event_time_ms", "key", "value"))
                    database.executemany(
                        "INSERT INTO readings VALUES (?, ?, ?)", zip(*columns, strict=True)
                    )


def main() -> None:
    """Run the job on what there is, and what comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("topic")
    parser.add_argument("ordered")
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--db", required=True)
    parser.add_argument("--available-now", action="store_true")
    given = parser.parse_args()
    report = reorder(
        KafkaSettings(bootstrap_servers=given.kafka),
        ReorderSettings(
            input_topics=(given.topic,),
            output_topic=given.ordered,
            event_time="json:at",  # {"at": 1700000000000, ...}
            checkpoint=given.checkpoint,
            delay="1s",
        ),
        on_step=Readings(given.db).add,
        available_now=given.available_now,
        drain=given.available_now,
    )
    print(f"{report.totals.released} rows in order")


if __name__ == "__main__":
    main()

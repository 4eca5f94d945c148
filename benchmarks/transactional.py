"""What transactions with a database cost, on PostgreSQL: the two examples.

    python -m benchmarks.process --only transactional [--events N]

- **GlobalCount** (`examples/transactional_global_count.py`) beside the same topology without its
  state, in turn, the best of each: the ratio is what the database costs.
- **Words** (`examples/transactional_words.py`): a word an event, of 100,000 keys; beside a plain
  loop that upserts a word at a time by psycopg, without Kafka, order or buckets, and that commits
  each word, or a thousand at once.

Each run has a database of its own on a server of its own, with the settings that a new server has.
What is in the tables then is held against what was sent.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.broker import bench_broker
from benchmarks.reorder_contenders import DELAY_S, Task, Took, run_job
from benchmarks.reorder_input import PARTITIONS, Workload, fill, key_and_value
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from benchmarks.reorder_input import Columns

    Command = Callable[[Task, Path], Sequence[str]]

WORD_KEYS: Final = 100_000
_ROUNDS: Final = 2
_LOOPED: Final = 20_000
_LOOP_COMMITS: Final = 1_000
_HERE: Final = Path(__file__).parent
_EXAMPLES: Final = _HERE.parent / "examples"
_UPSERT: Final = (
    "INSERT INTO loop VALUES (%s, 1) ON CONFLICT (word) DO UPDATE SET count = loop.count + 1"
)


def measure(events: int, command: Command, console: Console) -> list[dict[str, Any]]:
    """Both examples, and what they are held against.

    Args:
        events: How many events each job is given.
        command: Makes the command of the job that runs a topology's file.
        console: Where to tell how it goes.

    Raises:
        RuntimeError: A job failed, or its tables are wrong.
    """
    found: list[dict[str, Any]] = []
    with bench_broker() as bootstrap_servers, PostgresServer() as server:
        runs = _Runs(bootstrap_servers, server, command)
        runs.fill("counted", Workload(events=events))
        rates: dict[str, float] = {}
        for _ in range(_ROUNDS):
            for name, file in (
                ("global-count", _EXAMPLES / "transactional_global_count.py"),
                ("global-count.stateless", _HERE / "stateless_count_topology.py"),
            ):
                took, database = runs.run(file, "counted")
                if name == "global-count":
                    released = took.reports[-1]["released"]
                    _expect(server.sql("SELECT value FROM global_count", database), released)
                rate = events / took.seconds
                console.print(f"{name}: {rate:,.0f} events/s")
                rates[name] = max(rate, rates.get(name, 0))
        found += [_figure(f"{name}.rate", rate, "events/s") for name, rate in rates.items()]
        ratio = rates["global-count"] / rates["global-count.stateless"]
        found.append(_figure("global-count.to_stateless", ratio, "ratio"))
        drawn = runs.fill("worded", Workload(events=events, keys=WORD_KEYS))
        took, database = runs.run(_HERE / "keyed_words_topology.py", "worded")
        released = took.reports[-1]["released"]
        _expect(server.sql("SELECT sum(value) FROM word_counts", database), released)
        words = "SELECT (SELECT count(*) FROM word_counts) - sum(value) FROM word_buckets"
        _expect(server.sql(words, database), 0)
        found.append(_figure("words.rate", events / took.seconds, "words/s"))
        found.append(_figure("words.rate_once_warm", _warm(took), "words/s"))
        for name, commits in (("each", 1), ("thousand", _LOOP_COMMITS)):
            rate = _looped(server, drawn, commits)
            found.append(_figure(f"words.psycopg_loop.commit_{name}", rate, "words/s"))
    return found


class _Runs:
    """Runs jobs one after the other, each with a database and a checkpoint of its own."""

    def __init__(self, bootstrap_servers: str, server: PostgresServer, command: Command) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._server = server
        self._command = command
        self._number = 0

    def fill(self, topic: str, workload: Workload) -> Columns:
        """Send a workload into a new topic."""
        return fill(self._bootstrap_servers, topic, workload)

    def run(self, file: Path, source: str) -> tuple[Took, str]:
        """Run a topology on all of a topic; return what it took, and the database's name."""
        self._number += 1
        database, sink = f"bench_{self._number}", f"{source}.out-{self._number}"
        self._server.sql(f"CREATE DATABASE {database}")
        self._admin.create_topics([NewTopic(sink, PARTITIONS, 1)])[sink].result()
        with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
            task = Task(
                bootstrap_servers=self._bootstrap_servers,
                source=source,
                sink=sink,
                folder=Path(folder),
                delay_s=DELAY_S,
            )
            environ = {**os.environ, "STATE_URL": self._server.url(database)}
            return run_job(self._command(task, file), environ), database


def _warm(took: Took) -> float:
    """Words a second behind the first step, in which Spark and the JVM get going."""
    steps = took.reports[:-1]
    return float(
        sum(step["released"] for step in steps[1:]) / (steps[-1]["told_s"] - steps[0]["told_s"])
    )


def _looped(server: PostgresServer, drawn: Columns, commits: int) -> float:
    """Words a second of a plain loop that has them in memory already."""
    keys = drawn.key[:_LOOPED].tolist()
    words = [key_and_value(key, 0, 0)[0].decode() for key in keys]
    server.sql("DROP TABLE IF EXISTS loop")
    server.sql("CREATE TABLE loop (word TEXT PRIMARY KEY, count BIGINT)")
    with psycopg.connect(server.url().replace("+psycopg", "")) as connection:
        began_s = time.monotonic()
        for number, word in enumerate(words, 1):
            connection.execute(_UPSERT, (word,))
            if number % commits == 0:
                connection.commit()
        connection.commit()
        took_s = time.monotonic() - began_s
    _expect(server.sql("SELECT sum(count) FROM loop"), len(words))
    return len(words) / took_s


def _expect(rows: Sequence[tuple[object, ...]], expected: int) -> None:
    ((found,),) = rows
    if found != expected:
        raise RuntimeError(f"the tables come to {found}, and not to {expected}")


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit}

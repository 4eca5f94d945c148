"""What deletions cost the reorder job, by the setting `tombstones`.

    python -m benchmarks.reorder_tombstones [--events N] [--held N] [--runs N]

The events are those of Debezium with its JSON converter and without schemas: envelopes, ordered by
`source.ts_ms`. Two in a hundred are deletions, and a tombstone follows each of these. The delay is
such that so many rows as `--held` are held. The job reads them twice:

- small: in batches of 50,000 rows, which the driver stages;
- large: in batches of at most 500,000 rows, most of which tasks stage.

And it reads two topics, which differ in the timestamps of the tombstones:

- connect: the time at which Kafka Connect has sent them, a second after the event time;
- old: older than all events, so that with `key` all is looked through that is held.

Prints a table and writes build/bench/reorder_tombstones.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.broker import bench_broker
from benchmarks.reorder import OUTPUT
from benchmarks.reorder_contenders import Task, run_job, sequitur_command
from benchmarks.reorder_input import FIRST_MS, MOST_WAITING, PARTITIONS, Workload, columns, sending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.reorder_input import Columns

SETTINGS: Final = ("quarantine", "timestamp", "key")
BATCHES: Final = {"small": 50_000, "large": 500_000}
STAMPS: Final = ("connect", "old")
_SENT_AFTER_MS: Final = 1_000
_EACH: Final = 50
"""One of so many events is a deletion."""
_OLD_MS: Final = 10_000
_POLL_S: Final = 0.02
_ENVELOPE: Final = (
    b'{"before":%s,"after":%s,"source":{"version":"3.0.0.Final","connector":"postgresql",'
    b'"name":"shop","db":"shop","schema":"public","table":"accounts","lsn":%d,"ts_ms":%d},'
    b'"op":"%s","ts_ms":%d}'
)


def _fill(servers: str, topic: str, drawn: Columns) -> None:
    """Send each event as Debezium does, and a tombstone after each deletion."""
    times, keys, balances = (
        column.tolist() for column in (drawn.event_time_ms, drawn.key, drawn.usage)
    )
    with sending(servers, topic) as producer:
        for number, (at_ms, key, balance) in enumerate(zip(times, keys, balances, strict=True)):
            id_, row = b'{"id":%d}' % key, b'{"id":%d,"balance":%d}' % (key, balance)
            is_deletion = number % _EACH == 0
            rows = (row, b"null", b"d") if is_deletion else (b"null", row, b"u")
            sent_ms = at_ms + _SENT_AFTER_MS
            value = _ENVELOPE % (*rows[:2], number, at_ms, rows[2], sent_ms)
            producer.produce(topic, value, id_, timestamp=sent_ms)
            if is_deletion:
                stamp_ms = FIRST_MS - _OLD_MS if topic == "old" else sent_ms
                producer.produce(topic, None, id_, timestamp=stamp_ms)
            while len(producer) > MOST_WAITING // 2:
                producer.poll(_POLL_S)


def _run(
    admin: AdminClient, servers: str, topic: str, delay_s: int, *, tombstones: str, batches: str
) -> dict[str, Any]:
    """Run the job once: its speed, its processor time, and where its rows went."""
    sink = f"{topic}.out"
    admin.create_topics([NewTopic(sink, PARTITIONS, 1)])[sink].result()
    with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as folder:
        task = Task(
            bootstrap_servers=servers,
            source=topic,
            sink=sink,
            folder=Path(folder),
            delay_s=delay_s,
        )
        words = sequitur_command(
            task,
            event_time="json:source.ts_ms",
            tombstones=tombstones,
            max_offsets_per_trigger=BATCHES[batches],
        )
        took = run_job(words, os.environ)
    made = [name for name in admin.list_topics(timeout=30).topics if name.startswith(sink)]
    for deletion in admin.delete_topics(made).values():
        deletion.result()
    *steps, report = took.reports
    return {
        "records_per_s": report["read"] / took.seconds,
        "cpu_us_a_row": 1e6 * took.cpu_s / report["read"],
        "steps": report["steps"],
        "most_held": max(step["held"] for step in steps),
        **{name: report[name] for name in ("read", "released", "late", "quarantined")},
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--held", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--stamps", nargs="+", choices=STAMPS, default=STAMPS)
    parser.add_argument("--batches", nargs="+", choices=[*BATCHES], default=[*BATCHES])
    given = parser.parse_args()
    workload = Workload(events=given.events, late_share=0)
    delay_s = round(given.held / workload.events_per_ms / 1_000)
    drawn, console, found = columns(workload), Console(), []
    with bench_broker() as servers:
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        for stamps in given.stamps:
            _fill(servers, stamps, drawn)
            for _, batches, tombstones in product(range(given.runs), given.batches, SETTINGS):
                of = {"tombstones": tombstones, "batches": batches}
                name = f"{stamps}.{batches}.{tombstones}"
                found.append({"name": name, **_run(admin, servers, stamps, delay_s, **of)})
                console.print(found[-1])
    _print(found, console)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "reorder_tombstones.json").write_text(json.dumps(found, indent=2) + "\n")


def _print(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the medians, and each as a multiple (x) of what `quarantine` takes."""
    table = Table(title="Deletions, Kafka to Kafka", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("records/s", "x", "CPU us a row", "x", "most held"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in dict.fromkeys(one["name"] for one in found):
        base = f"{name.rpartition('.')[0]}.quarantine"
        cells = [name]
        for figure, digits in (("records_per_s", 0), ("cpu_us_a_row", 1)):
            own, other = (_median(found, of, figure) for of in (name, base))
            cells += [f"{own:,.{digits}f}", f"{own / other:.2f}"]
        table.add_row(*cells, f"{_median(found, name, 'most_held'):,.0f}")
    console.print(table)


def _median(found: Sequence[Mapping[str, Any]], name: str, figure: str) -> float:
    return statistics.median(float(one[figure]) for one in found if one["name"] == name)


if __name__ == "__main__":
    main()

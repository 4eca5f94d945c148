"""What the local runner gives beside Spark: the same reorder job, in turns, on one broker.

    python -m benchmarks.runners [--short] [--only start|idle|steady|s3 ...]

- start: from the command to the first row in order, where 1,000 rows wait and all topics are there:
  the local runner in a new environment with `[local]` alone and without Java, with and without a
  topology, and the job on Spark;
- idle: the processor time that the local runner takes where no row comes;
- steady: at 20,000 events/s, how long a row takes on each runner from when it was due, beyond its
  time and the delay, and beyond its release by a job that takes no time; processor time for a row,
  and memory at the start, in the middle and at the end;
- s3: the same on the local runner with its checkpoint in an S3 that takes 30 ms for an answer, and
  for how many answers a step waits, one after the other.

How a backlog is put into order stands in `benchmarks.reorder`. Prints a table of each part, and
writes build/bench/runners.json: for each part when it began, its figures, and the raw series that
they were taken from. A part that is not measured this time stays there as it was.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from benchmarks.broker import bench_broker
from benchmarks.figures import print_figures
from benchmarks.reorder import OUTPUT
from benchmarks.runners_start import IDLE_S, ROUNDS, measure_idle, measure_start
from benchmarks.runners_steady import LONG, SHORT, measure_s3, measure_steady
from benchmarks.steady_stream import Steady, add_stream_options, stream_of

if TYPE_CHECKING:
    from benchmarks.runners_start import Found

PARTS: Final = ("start", "idle", "steady", "s3")
_SHORT_ROUNDS: Final = 2


def measure(
    part: str, bootstrap_servers: str, console: Console, *, short: bool, stream: Steady
) -> Found:
    """Measure one part."""
    if part == "start":
        rounds = _SHORT_ROUNDS if short else ROUNDS
        return measure_start(bootstrap_servers, console, rounds=rounds)
    if part == "idle":
        seconds = IDLE_S / 4 if short else IDLE_S
        return measure_idle(bootstrap_servers, console, seconds=seconds)
    if part == "steady":
        return measure_steady(bootstrap_servers, console, stream)
    return measure_s3(bootstrap_servers, console, stream)


def keep(part: str, found: dict[str, Any]) -> None:
    """Write what was found of a part beside what was of others."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    file = OUTPUT / "runners.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**before, part: found}) + "\n")


def main() -> None:
    """Measure, print and write part by part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--short", action="store_true", help="fewer rounds, and shorter ones")
    add_stream_options(parser)
    given = parser.parse_args()
    console = Console()
    stream = stream_of(given, SHORT if given.short else LONG)
    with bench_broker() as bootstrap_servers:
        for part in (part for part in PARTS if part in given.only):
            began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            figures, series = measure(
                part, bootstrap_servers, console, short=given.short, stream=stream
            )
            print_figures(part, figures)
            keep(
                part,
                {"began": began, "short": given.short, "figures": figures, "series": series},
            )


if __name__ == "__main__":
    main()

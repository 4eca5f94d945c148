"""What the local runner gives beside Spark: the same reorder job, in turns, on one broker.

    python -m benchmarks.runners [--short] [--only start|idle ...]

- start: from the command to the first row in order, where 1,000 rows wait and all topics are there:
  the local runner in a new environment with `[local]` alone and without Java, with and without a
  topology, and the job on Spark;
- idle: the processor time that the local runner takes where no row comes.

How a backlog is put into order stands in `benchmarks.reorder`. Prints a table of each part, and
writes build/bench/runners.json: for each part when it began, and its figures, each with the raw
series that it was taken from. A part that is not measured this time stays there as it was.
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

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS: Final = ("start", "idle")
_SHORT_ROUNDS: Final = 2


def measure(
    part: str, bootstrap_servers: str, console: Console, *, short: bool
) -> Sequence[dict[str, Any]]:
    """Measure one part."""
    if part == "start":
        rounds = _SHORT_ROUNDS if short else ROUNDS
        return measure_start(bootstrap_servers, console, rounds=rounds)
    return measure_idle(bootstrap_servers, console, seconds=IDLE_S / 4 if short else IDLE_S)


def keep(part: str, found: dict[str, Any]) -> None:
    """Write what was found of a part beside what was of others."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    file = OUTPUT / "runners.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**before, part: found}, indent=1) + "\n")


def main() -> None:
    """Measure, print and write part by part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--short", action="store_true", help="fewer rounds, and shorter ones")
    given = parser.parse_args()
    console = Console()
    with bench_broker() as bootstrap_servers:
        for part in (part for part in PARTS if part in given.only):
            began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            figures = measure(part, bootstrap_servers, console, short=given.short)
            print_figures(part, figures)
            keep(part, {"began": began, "short": given.short, "figures": figures})


if __name__ == "__main__":
    main()

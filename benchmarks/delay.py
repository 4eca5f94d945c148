"""How long rows wait under a learned delay, beside every fixed delay of the same late share.

    python -m benchmarks.delay [--seconds N]

Two disorders, each with a shift in the middle:

- *recorded*: three daemons sample this machine's CPUs and keep each reading back for a time of
  their own, as in the demo, through a real broker; half-way they go over to longer times.
- *generated*: 1,000 rows/s with a heavy tail, from a seed; the tail is four times as long in the
  middle third, and one row in a thousand is lost on its way for up to half a minute.

The clock and the learner of the job are then run over the arrivals, a step each 0.6 s, without
Kafka or Spark: what they decide depends on nothing else. A row waits from its arrival to the end of
the step that releases it. Prints a table, draws build/bench/delay.png, and writes
build/bench/delay.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.broker import bench_broker
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.cli.topic_reader import read_topic
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.learned_delay import (
    DelayPolicy,
    LearnedDelays,
    StepLateness,
    lateness_bin,
)
from sequitur.kafka.partition import SourcePartition
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

OUTPUT: Final = Path("build/bench")
STEP_MS: Final = 600
SHORT_SEND_DELAYS_S: Final = (0.0, 0.3, 0.8)
LONG_SEND_DELAYS_S: Final = (0.0, 1.5, 4.0)
TARGETS: Final = (0.03, 0.01, 0.003, 0.001)
MIN_DELAY_MS: Final = 100
MAX_DELAY_MS: Final = 60_000
HALF_LIFE_MS: Final = 60_000
_LONG_AGO_S: Final = 10**7
_TOPIC: Final = "delay-bench"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows in order of arrival.

    Attributes:
        name: What they are.
        arrived_ms: When each came, epoch milliseconds, shape (rows,).
        event_ms: Its event time, epoch milliseconds, shape (rows,).
        partition: Its source partition, shape (rows,).
    """

    name: str
    arrived_ms: NDArray[np.int64]
    event_ms: NDArray[np.int64]
    partition: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a delay did to the arrivals.

    Attributes:
        delay: "auto", or the fixed delay in ms.
        target: What a learned delay promises, None of a fixed one.
        late_share: Rows behind the frontier, of all.
        held_mean_ms: Mean wait of the rows that were on time.
        held_p99_ms: The wait that 99 % of these stay within.
    """

    delay: str
    target: float | None
    late_share: float
    held_mean_ms: float
    held_p99_ms: float


def record(seconds: float) -> Arrivals:
    """What three daemons of this machine send in `seconds`, with longer ways in the second half."""
    time_of = parse_event_time_spec("json:occurred_at")
    rows: list[tuple[int, int, int]] = []
    with bench_broker() as servers, tempfile.TemporaryDirectory() as folder:
        for phase, send_delays in enumerate((SHORT_SEND_DELAYS_S, LONG_SEND_DELAYS_S)):
            daemons = [
                subprocess.Popen(
                    [
                        sys.executable, "-m", "sequitur.producer",
                        "--topic", _TOPIC, "--partitions", "4",
                        "--name", f"cpu-{phase}-{number}", "--source", "cpu",
                        "--journal", f"{folder}/{phase}-{number}",
                        "--rate-hz", "200", "--duration", f"{seconds / 2:g} s",
                        "--send-delay", f"{send_delay * 1000:g} ms",
                    ],
                    env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": servers},
                    stdout=subprocess.DEVNULL,
                )
                for number, send_delay in enumerate(send_delays)
            ]  # fmt: skip
            if any(daemon.wait() for daemon in daemons):
                raise RuntimeError("a daemon failed")
        for found in read_topic(KafkaSettings(bootstrap_servers=servers), _TOPIC):
            event_ms = time_of.of(found.value, found.headers, found.timestamp_ms)
            if event_ms is not None:
                rows.append((found.timestamp_ms, event_ms, found.partition))
    return _in_order("recorded", np.array(rows, dtype=np.int64))


def generate(seconds: float, *, seed: int = 7, rows_per_s: int = 1000) -> Arrivals:
    """Rows with a log-normal way to Kafka, four times as long in the middle third."""
    rng = np.random.default_rng(seed)
    count = int(seconds * rows_per_s)
    event_ms = 1_700_000_000_000 + np.arange(count) * 1000 // rows_per_s
    way_ms = rng.lognormal(mean=5.0, sigma=0.9, size=count)
    third = count // 3
    way_ms[third : 2 * third] *= 4
    lost = rng.random(count) < 0.001
    way_ms[lost] += rng.uniform(0, 30_000, size=int(lost.sum()))
    partition = rng.integers(0, 4, size=count)
    arrived_ms = event_ms + way_ms.astype(np.int64)
    return _in_order("generated", np.stack([arrived_ms, event_ms, partition], axis=1))


def _in_order(name: str, rows: NDArray[np.int64]) -> Arrivals:
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return Arrivals(name, rows[:, 0], rows[:, 1], rows[:, 2])


class _Run:
    """The job's clock and learner over arrivals.

    Args:
        arrivals: The rows.
        fixed_ms: The delay; None for a learned one.
        policy: What to learn.
    """

    def __init__(self, arrivals: Arrivals, fixed_ms: int | None, policy: DelayPolicy) -> None:
        self._arrivals = arrivals
        self._fixed_ms = fixed_ms
        self._policy = policy
        self._sources = [SourcePartition(_TOPIC, int(p)) for p in np.unique(arrivals.partition)]
        self._clock = EventClock()
        self._learned = LearnedDelays()
        self.delays: list[tuple[int, int]] = []
        """(arrival time, greatest delay) at the end of each step."""

    def outcome(self) -> Outcome:
        """Run all steps, and drain."""
        arrived, event = self._arrivals.arrived_ms, self._arrivals.event_ms
        late = np.zeros(len(event), dtype=bool)
        released_ms = np.zeros(len(event), dtype=np.int64)
        ends = np.arange(arrived[0] + STEP_MS, arrived[-1] + STEP_MS, STEP_MS)
        cuts = np.searchsorted(arrived, ends, side="right")
        frontiers: list[int] = []
        for number, (start, end) in enumerate(itertools.pairwise([0, *cuts])):
            late[start:end] = event[start:end] < self._clock.frontier_ms
            self._step(slice(int(start), int(end)), late, now_ms=int(ends[number]))
            frontiers.append(self._clock.frontier_ms)
        # The first step whose frontier reaches a row, but not before the one that read it.
        reached = np.searchsorted(np.array(frontiers), event, side="left")
        read = np.searchsorted(ends, arrived, side="left")
        step = np.minimum(np.maximum(reached, read), len(ends) - 1)
        released_ms = ends[step]
        held = (released_ms - arrived)[~late]
        return Outcome(
            delay="auto" if self._fixed_ms is None else str(self._fixed_ms),
            target=self._policy.late_target if self._fixed_ms is None else None,
            late_share=float(late.mean()),
            held_mean_ms=float(held.mean()),
            held_p99_ms=float(np.quantile(held, 0.99)),
        )

    def _step(self, rows: slice, late: NDArray[np.bool_], *, now_ms: int) -> None:
        clock = self._clock
        for source in self._sources:
            here = self._arrivals.partition[rows] == source.partition
            event = self._arrivals.event_ms[rows][here]
            before = clock.partitions.get(source)
            known_ms = None if before is None else before.max_event_time_ms
            clock = clock.observe(
                source,
                max_event_time_ms=int(event.max()) if len(event) else None,
                position=0,
                high_watermark=1,  # nobody is idle
                now_ms=now_ms,
            )
            if self._fixed_ms is None and known_ms is not None and len(event):
                bins = [lateness_bin(int(ms)) for ms in known_ms - event[event < known_ms]]
                numbers, counts = np.unique(bins, return_counts=True)
                self._learned = self._learned.learn(
                    source,
                    StepLateness(
                        rows=len(event),
                        late=int(late[rows][here].sum()),
                        behind=dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
                    ),
                    reached_ms=clock.partitions[source].max_event_time_ms or 0,
                    half_life_ms=self._policy.half_life_ms,
                    is_backlog=False,
                )
        delays: dict[SourcePartition, int] | int
        if self._fixed_ms is None:
            delays = self._learned.delays_ms(self._sources, self._policy)
            self.delays.append((now_ms, max(delays.values())))
        else:
            delays = self._fixed_ms
        self._clock = clock.advance(
            now_ms=now_ms, delay_ms=delays, idle_timeout_ms=_LONG_AGO_S * 1000
        )
        assert self._clock.frontier_ms >= BEFORE_ALL_TIME_MS


def _policy(target: float) -> DelayPolicy:
    return DelayPolicy(
        late_target=target, min_ms=MIN_DELAY_MS, max_ms=MAX_DELAY_MS, half_life_ms=HALF_LIFE_MS
    )


def fixed(arrivals: Arrivals, delay_ms: int) -> Outcome:
    """What a fixed delay does."""
    return _Run(arrivals, delay_ms, _policy(0.001)).outcome()


def shortest_fixed(arrivals: Arrivals, late_share: float) -> Outcome:
    """The shortest fixed delay, to a millisecond, with at most this late share."""
    low, high = 0, MAX_DELAY_MS
    while low < high:
        middle = (low + high) // 2
        if fixed(arrivals, middle).late_share <= late_share:
            high = middle
        else:
            low = middle + 1
    return fixed(arrivals, low)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A learned delay, and the shortest fixed one that is late no more often."""

    disorder: str
    learned: Outcome
    fixed: Outcome

    @property
    def held_ratio(self) -> float:
        """Mean wait under the learned delay, as a share of that under the fixed one."""
        return self.learned.held_mean_ms / self.fixed.held_mean_ms


def print_table(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print every figure."""
    table = Table(title="Learned delay against the best fixed one", title_justify="left")
    table.add_column("disorder")
    columns = ("target", "late", "held mean s", "p99 s", "fixed s", "late", "held mean s", "held")
    for column in columns:
        table.add_column(column, justify="right")
    for found in comparisons:
        learned, best = found.learned, found.fixed
        table.add_row(
            found.disorder,
            f"{learned.target:.1%}",
            f"{learned.late_share:.2%}",
            f"{learned.held_mean_ms / 1000:.2f}",
            f"{learned.held_p99_ms / 1000:.2f}",
            f"{int(best.delay) / 1000:.2f}",
            f"{best.late_share:.2%}",
            f"{best.held_mean_ms / 1000:.2f}",
            f"{found.held_ratio:.2f}x",
        )
    console.print(table)


def draw(arrivals: Sequence[Arrivals], comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw each disorder with the learned delay over it, and waiting against late share."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12, 4.2 * len(arrivals)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(arrivals), 2, squeeze=False)
    for (left, right), found in zip(panels, arrivals, strict=True):
        _draw_disorder(left, found)
        mine = [c for c in comparisons if c.disorder == found.name]
        _draw_prices(right, found, mine)
    figure.savefig(path, dpi=110)


def _draw_disorder(axes: Axes, arrivals: Arrivals) -> None:
    start_ms = arrivals.arrived_ms[0]
    way_s = (arrivals.arrived_ms - arrivals.event_ms) / 1000
    axes.plot((arrivals.arrived_ms - start_ms) / 1000, way_s, ",", color="#b8b8b8")
    run = _Run(arrivals, None, _policy(TARGETS[-1]))
    run.outcome()
    times, delays = zip(*run.delays, strict=True)
    axes.step((np.array(times) - start_ms) / 1000, np.array(delays) / 1000, color="#3b6fb6")
    axes.set_ylim(0, max(delays[len(delays) // 10 :]) / 1000 * 1.2)
    axes.set_title(f"{arrivals.name}: each row's way, and the delay learned for 0.1 %")
    axes.set_xlabel("arrival, s")
    axes.set_ylabel("s")


def _draw_prices(axes: Axes, arrivals: Arrivals, comparisons: Sequence[Comparison]) -> None:
    longest = max(int(c.fixed.delay) for c in comparisons)
    curve = [fixed(arrivals, int(ms)) for ms in np.linspace(longest / 20, longest * 1.2, 25)]
    axes.plot(
        [c.late_share * 100 for c in curve],
        [c.held_mean_ms / 1000 for c in curve],
        color="#b8b8b8", marker=".", label="fixed delays",
    )  # fmt: skip
    axes.plot(
        [c.learned.late_share * 100 for c in comparisons],
        [c.learned.held_mean_ms / 1000 for c in comparisons],
        "o", color="#3b6fb6", label="learned, by target",
    )  # fmt: skip
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set_xlabel("late, %")
    axes.set_ylabel("mean wait, s")
    axes.legend(frameon=False)


def main() -> None:
    """Record, simulate, print, draw and write; status 1 where a fixed delay is as good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="Length of the recording")
    given = parser.parse_args()
    console = Console()
    console.print(f"recording three daemons for {given.seconds:g} s")
    disorders = [record(given.seconds), generate(1800.0)]
    comparisons: list[Comparison] = []
    for arrivals in disorders:
        for target in TARGETS:
            learned = _Run(arrivals, None, _policy(target)).outcome()
            best = shortest_fixed(arrivals, learned.late_share)
            comparisons.append(Comparison(arrivals.name, learned, best))
    print_table(comparisons, console)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    draw(disorders, comparisons, OUTPUT / "delay.png")
    document: list[dict[str, Any]] = [
        {
            "disorder": found.disorder,
            "learned": asdict(found.learned),
            "fixed": asdict(found.fixed),
            "held_ratio": round(found.held_ratio, 4),
        }
        for found in comparisons
    ]
    (OUTPUT / "delay.json").write_text(json.dumps(document, indent=2) + "\n")
    if any(found.held_ratio >= 1 for found in comparisons):
        sys.exit(1)


if __name__ == "__main__":
    main()

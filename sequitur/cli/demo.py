"""The demo: the reorder job on this machine's own CPU readings, and a picture of what it did.

Three daemons sample the CPU usage of this machine and send it with different delays. So the topic's
arrival order differs from event-time order, as in the article this project starts from. The reorder
job restores event-time order: once by the local runner, once on Spark, each into a topic of its
own. A reader that shares no code with them then compares each output with the input, event by
event, and the two outputs row by row. A third job computes the mean usage of each CPU by minute,
which is compared with what pandas computes. The demo fails if an event is lost, duplicated or out
of order, if the outputs differ, or if a mean is missing, doubled or another one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from sequitur.base.child_processes import holding_signals, leaving_on_signals, run_with_children
from sequitur.base.extras import load
from sequitur.base.units import Duration, milliseconds
from sequitur.cli import demo_usage
from sequitur.cli.topic_reader import TopicRecord, read_topic, topic_exists
from sequitur.cli.verify import TopicCheck, TopicReport
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.embedded import EmbeddedBroker
from sequitur.errors import DemoError
from sequitur.pipelines.ordering.progress import ProgressStyle
from sequitur.pipelines.run_options import RunOptions
from sequitur.pipelines.spark_settings import spark_home
from sequitur.producer import EVENT_ID_HEADER, KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

_PICTURE: Final = "the demo's picture"
_COLOURS: Final = ("#3b6fb6", "#d1702a", "#3a9a6b", "#8a5cb0", "#b0413e")
_LIMIT: Final = "#777777"
_NARROWEST: Final = 2.2
_WIDER: Final = 3.5
"""How many points wider a producer is drawn than the next, where one hides the other."""

Runner = Literal["spark", "local"]
INPUT_TOPIC: Final = "cpu-readings"
OUTPUT_TOPICS: Final[Mapping[Runner, str]] = {
    "spark": "cpu-readings.ordered",
    "local": "cpu-readings.local",
}
MEANS_TOPIC: Final = "cpu-readings.means"
SEND_DELAYS_S: Final = (0.0, 1.5, 4.0)
"""How long each daemon delays a reading: less than the job's delay, so none is late."""

_COUNTS: Final = ("read", "released", "late", "quarantined", "held", "lost", "duplicates")
_TITLES: Final[Mapping[Runner, str]] = {"spark": "on Spark", "local": "local runner"}
_EVENT_TIME: Final = "json:occurred_at"
_PARTITIONS: Final = 4
_ROWS_A_BATCH: Final = 2_500
"""It is small, so that the job restores order over several batches and not by one sort."""
_IDLE_TIMEOUT: Final = "1 s"
"""It is short, since a machine with two CPUs leaves two of the four partitions empty."""
_DAEMON_GRACE_S: Final = 300.0
_JOB_TIMEOUT_S: Final = 600.0
_LOG_LINES: Final = 5
_NINE_DIGITS: Final = 5e-10
_MOST_MEANS: Final = 8
"""At most so many means are shown."""
_SAID_BY_EACH_JVM: Final = "WARNING: Using incubator modules"
"""Spark's JVM uses one, and no option silences the warning."""


def run_demo(*, seconds: float, rate_hz: float, delay: str, plot: Path) -> DemoReport:
    """Run the demo and draw `plot`.

    A broker named by KAFKA_BOOTSTRAP_SERVERS is used where there is one; its topics of the demo's
    names must not exist yet. Otherwise an embedded one is started, and ended with its data. At
    SIGINT and SIGTERM, too, all that was started is ended.

    Raises:
        MissingExtraError: Spark, matplotlib or cloudpickle is not installed.
    """
    delay_ms = _milliseconds(delay)
    spark_home()  # raise for missing parts before anything starts
    load("matplotlib", _PICTURE)
    load("cloudpickle", "the demo's job without Spark")
    load("pandas", "the demo's comparison")
    with (
        leaving_on_signals(),
        tempfile.TemporaryDirectory(prefix="sequitur-demo-") as folder,
        _broker(folder) as kafka,
    ):
        topics = (INPUT_TOPIC, *OUTPUT_TOPICS.values(), MEANS_TOPIC)
        taken = [name for name in topics if topic_exists(kafka, name)]
        if taken:
            raise DemoError(f"topic {taken[0]!r} exists already: the demo needs a fresh one")
        environ = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
        delays = ", ".join(f"{delay_s:g}" for delay_s in SEND_DELAYS_S)
        _say(
            f"{len(SEND_DELAYS_S)} daemons sample the CPUs for {seconds:g} s, and send what they "
            f"read {delays} s later"
        )
        sent = _run_daemons(environ, Path(folder), seconds=seconds, rate_hz=rate_hz)
        _say(f"{sent:,} events are in Kafka. The local runner puts them in order, without Spark")
        jobs: dict[Runner, _Job] = {}
        jobs["local"] = _run_job(environ, Path(folder), "local", delay=delay)
        _say("Spark starts with the same job on the same events")
        jobs["spark"] = _run_job(environ, Path(folder), "spark", delay=delay)
        _say("a topology computes the mean usage of each CPU by minute")
        _run_means(environ, Path(folder), delay=delay)
        _say("an independent reader compares what came out with what went in")
        return _compare(kafka, sent, jobs, plot, delay_ms)


@dataclass(frozen=True, slots=True)
class DemoReport:
    sent: int  # events the daemons report as persisted
    before: TopicReport  # the check of the input topic
    runners: Mapping[Runner, RunnerReport]  # what the job did, by the name of its runner
    differing: int  # rows of one ordered topic that the other lacks at the same place
    means: MeansReport
    problems: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "before": self.before.as_json(),
            "runners": {name: one.as_json() for name, one in self.runners.items()},
            "differing": self.differing,
            "means": self.means.as_json(),
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class MinuteMean:
    key: str  # host and CPU
    begin_ms: int  # of the minute, epoch ms
    mean: float  # usage in per cent
    count: int  # how many readings


@dataclass(frozen=True, slots=True)
class MeansReport:
    """Mean usage by CPU and minute, as the topology computed it and as pandas does."""

    found: Sequence[MinuteMean]
    wanted: Sequence[MinuteMean]

    @property
    def problems(self) -> tuple[str, ...]:
        found = {(one.key, one.begin_ms): one for one in self.found}
        wanted = {(one.key, one.begin_ms): one for one in self.wanted}
        differing = sum(
            found[place].count != one.count
            or not math.isclose(found[place].mean, one.mean, rel_tol=_NINE_DIGITS)
            for place, one in wanted.items()
            if place in found
        )
        claims = {
            f"{len(self.found) - len(found)} means put out again": len(self.found) == len(found),
            f"{len(wanted.keys() - found.keys())} means missing": wanted.keys() <= found.keys(),
            f"{len(found.keys() - wanted.keys())} means too many": found.keys() <= wanted.keys(),
            f"{differing} means are not those of pandas": differing == 0,
        }
        return tuple(problem for problem, holds in claims.items() if not holds)

    def as_json(self) -> dict[str, Any]:
        return {
            "found": [asdict(one) for one in self.found],
            "pandas": [asdict(one) for one in self.wanted],
        }


@dataclass(frozen=True, slots=True)
class RunnerReport:
    """The job's result on one runner. All counts are of events."""

    seconds: float  # from the command to its end
    read: int
    released: int  # events in the ordered topic, as the independent reader counts them
    late: int  # events in the late topic
    quarantined: int  # events in the quarantine topic
    held: int  # events the job still held when it ended
    lost: int  # events of the input topic that are in no output topic
    duplicates: int  # records beyond the first of their event id, over the three
    after: TopicReport  # the check of the ordered topic

    @property
    def problems(self) -> tuple[str, ...]:
        out = self.released + self.late + self.quarantined + self.held
        claims = {
            f"{self.lost} events lost on the way out": self.lost == 0,
            f"{self.duplicates} duplicates on the way out": self.duplicates == 0,
            f"{self.read} events read, but {out} accounted for": self.read == out,
            f"{self.after.event_inversions} inversions left": self.after.event_inversions == 0,
        }
        return tuple(problem for problem, holds in claims.items() if not holds)

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 2),
            **{name: getattr(self, name) for name in _COUNTS},
            "after": self.after.as_json(),
        }


def print_report(report: DemoReport, console: Console) -> None:
    """Print the report as a table, with the failed claims below it."""
    table = Table(title="From arrival order to event-time order", title_justify="left")
    table.add_column("events")
    for runner in report.runners:
        table.add_column(_TITLES[runner], justify="right")

    def add(name: str, *values: object) -> None:
        table.add_row(name, *(f"{value:,}" for value in values))

    jobs = report.runners.values()
    add("sent", *[report.sent for _ in jobs])
    for name in _COUNTS:
        add(name, *[getattr(job, name) for job in jobs])
    table.add_section()
    add("keys", *[report.before.keys for _ in jobs])
    add("order inversions per key, before", *[report.before.event_inversions for _ in jobs])
    add("order inversions per key, after", *[job.after.event_inversions for job in jobs])
    table.add_section()
    add("seconds from command to end", *[round(job.seconds, 1) for job in jobs])
    console.print(table)
    console.print(_table_of_means(report.means.found))
    for problem in report.problems:
        console.print(f"[bold red]{problem}")
    if not report.problems:
        console.print("[bold green]nothing lost, nothing duplicated, every key in event-time order")
    if report.differing == 0:
        console.print("[bold green]both runners wrote the same rows")
    if report.means.found and not report.means.problems:
        console.print("[bold green]each mean is out once, and to nine digits that of pandas")


def _table_of_means(means: Sequence[MinuteMean]) -> Table:
    table = Table(title="Mean CPU usage by minute", title_justify="left")
    for title in ("minute", "CPU"):
        table.add_column(title)
    for title in ("readings", "mean usage"):
        table.add_column(title, justify="right")
    for one in sorted(means, key=lambda one: (one.begin_ms, one.key))[:_MOST_MEANS]:
        minute = datetime.fromtimestamp(one.begin_ms / 1000, UTC)
        table.add_row(f"{minute:%H:%M}", one.key, f"{one.count:,}", f"{one.mean:.9f} %")
    if len(means) > _MOST_MEANS:
        table.caption = f"and {len(means) - _MOST_MEANS:,} more"
    return table


@contextlib.contextmanager
def _broker(folder: str) -> Iterator[KafkaSettings]:
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given is not None:
        _say(f"the broker is {given}, as KAFKA_BOOTSTRAP_SERVERS says")
        yield KafkaSettings(bootstrap_servers=given)
        return
    broker = EmbeddedBroker(Path(folder) / "broker", short_lived=True)
    _say("an embedded broker starts")
    try:
        yield KafkaSettings(bootstrap_servers=broker.start())
    finally:
        broker.stop()


@contextlib.contextmanager
def _limit(timeout_s: float, what: str) -> Iterator[float]:
    """Raise an error that names the slow program. The limit is for hangs, not for slow machines."""
    try:
        yield timeout_s
    except subprocess.TimeoutExpired as error:
        raise DemoError(f"{what} had not ended after {timeout_s:g} s, and was killed") from error


def _run_daemons(
    environ: Mapping[str, str], folder: Path, *, seconds: float, rate_hz: float
) -> int:
    """Run all daemons side by side; return how many events they report as persisted."""
    daemons: list[subprocess.Popen[str]] = []
    persisted = 0
    try:
        for number, send_delay_s in enumerate(SEND_DELAYS_S, start=1):
            command = [
                sys.executable, "-P", "-m", "sequitur.producer",
                "--topic", INPUT_TOPIC, "--partitions", str(_PARTITIONS),
                "--name", f"cpu-{number}", "--source", "cpu",
                "--journal", str(folder / f"cpu-{number}.journal"),
                "--rate-hz", f"{rate_hz:g}", "--duration", f"{seconds:g} s",
                "--send-delay", f"{round(send_delay_s * 1000)} ms",
            ]  # fmt: skip
            with holding_signals(), _log(folder, number).open("w") as log:
                daemons.append(
                    subprocess.Popen(
                        command, env=environ, stdout=subprocess.PIPE, stderr=log, text=True
                    )
                )
        for number, daemon in enumerate(daemons, start=1):
            with _limit(seconds + _DAEMON_GRACE_S, "a daemon") as timeout_s:
                output, _ = daemon.communicate(timeout=timeout_s)
            if daemon.returncode != 0:
                last = "".join(_log(folder, number).read_text().splitlines(True)[-_LOG_LINES:])
                raise DemoError(
                    f"produce-events ended with status {daemon.returncode}, after\n{last}"
                )
            summary = json.loads(output.strip().splitlines()[-1])
            if summary["persisted"] != summary["accepted"]:
                raise DemoError(f"produce-events could not send everything: {summary}")
            persisted += summary["persisted"]
    finally:
        for daemon in daemons:
            if daemon.poll() is None:
                daemon.kill()
            daemon.wait()
    return persisted


def _log(folder: Path, number: int) -> Path:
    return folder / f"cpu-{number}.log"


@dataclass(frozen=True, slots=True)
class _Job:
    counts: Mapping[str, int]  # the counts of its final report
    seconds: float  # from the command to its end


def _run_job(environ: Mapping[str, str], folder: Path, runner: Runner, *, delay: str) -> _Job:
    """Run the reorder job until it has drained."""
    words = ["reorder", "--max-offsets-per-trigger", str(_ROWS_A_BATCH)]
    if runner == "spark":
        # A minute's work does not pay for the JVM's optimising compiler.
        words += ["--conf", "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1"]
    begun = time.monotonic()
    counts = _drained(environ, folder, runner, words, OUTPUT_TOPICS[runner], delay)
    return _Job(counts, time.monotonic() - begun)


def _run_means(environ: Mapping[str, str], folder: Path, *, delay: str) -> None:
    """Run the topology until all its windows are closed."""
    words = ["process", str(demo_usage.__file__)]
    _drained(environ, folder, "local", words, MEANS_TOPIC, delay)


def _drained(  # noqa: PLR0917 - private, and each is of a type of its own
    environ: Mapping[str, str],
    folder: Path,
    runner: Runner,
    words: Sequence[str],
    output_topic: str,
    delay: str,
) -> dict[str, Any]:
    """Run a job on all readings until it has drained; return its report."""
    report, title = folder / f"{output_topic}.json", f"the {words[0]} job (runner {runner})"
    command = [
        sys.executable, "-P", "-m", "sequitur", *words, "--runner", runner,
        "--input-topics", INPUT_TOPIC, "--output-topic", output_topic,
        "--event-time", _EVENT_TIME, "--delay", delay, "--idle-timeout", _IDLE_TIMEOUT,
        "--checkpoint", str(folder / f"checkpoint.{output_topic}"),
        *RunOptions(
            available_now=True, drain=True, report=report, progress=ProgressStyle.TEXT
        ).flags(),
    ]  # fmt: skip
    with _limit(_JOB_TIMEOUT_S, title) as timeout_s:
        status = run_with_children(
            command, environ, timeout_s=timeout_s, leave_out=_SAID_BY_EACH_JVM
        )
    if status != 0:
        raise DemoError(f"{title} ended with status {status}")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def _compare(
    kafka: KafkaSettings,
    sent: int,
    jobs: Mapping[Runner, _Job],
    plot: Path,
    delay_ms: int | None,
) -> DemoReport:
    went_in = _Contents.read(kafka, INPUT_TOPIC)
    ordered = {runner: _Contents.read(kafka, OUTPUT_TOPICS[runner]) for runner in jobs}
    runners = {
        runner: _report(kafka, went_in, ordered[runner], job) for runner, job in jobs.items()
    }
    before = went_in.report
    figure = plot_arrivals(
        went_in.arrivals,
        ordered["spark"].arrivals,
        inversions=(before.event_inversions, runners["spark"].after.event_inversions),
        delay_ms=delay_ms,
    )
    figure.savefig(plot)
    rows, others = ordered["local"].rows, ordered["spark"].rows
    differing = sum(rows.get(place) != others.get(place) for place in rows.keys() | others.keys())
    # Whether a row is late depends on the rows read before, and so on batch boundaries.
    may_differ = any(one.late for one in runners.values())
    claims = {
        f"{sent} events sent, but {before.records} in the topic": sent == before.records,
        f"{before.missing} events missing from the topic": before.missing == 0,
        f"{before.duplicates} duplicates in the topic": before.duplicates == 0,
        f"{before.send_inversions} events sent out of order": before.send_inversions == 0,
        "the arrival order was not broken, so nothing is shown": before.event_inversions > 0,
        f"{differing} rows differ between both runners": differing == 0 or may_differ,
    }
    for runner, one in runners.items():
        problem = f"{_TITLES[runner]}: {one.read} events read, but {before.records} in the topic"
        claims[problem] = one.read == before.records
    problems = [problem for problem, holds in claims.items() if not holds]
    for runner, one in runners.items():
        problems += [f"{_TITLES[runner]}: {problem}" for problem in one.problems]
    means = _means(kafka)
    return DemoReport(sent, before, runners, differing, means, (*problems, *means.problems))


def _means(kafka: KafkaSettings) -> MeansReport:
    """Compare the means that came out with those that pandas computes of the same readings."""
    late = _Contents.read(kafka, f"{MEANS_TOPIC}.late").ids
    rows = [
        {"key": (record.key or b"").decode(), **json.loads(record.value or b"")}
        for record in read_topic(kafka, INPUT_TOPIC)
        if record.header(EVENT_ID_HEADER) not in late
    ]
    found = []
    for record in read_topic(kafka, MEANS_TOPIC):
        one = json.loads(record.value or b"")
        key = (record.key or b"").decode()
        found.append(MinuteMean(key, one["begin_ms"], one["mean"], one["count"]))
    return MeansReport(found, means_of(rows))


def means_of(rows: Sequence[Mapping[str, Any]]) -> list[MinuteMean]:
    """Return the mean usage by key and minute, as pandas computes it."""
    readings = load("pandas", "the demo's comparison").DataFrame(rows)
    minutes = readings["occurred_at"] // 60_000 * 60_000
    grouped = readings.groupby(["key", minutes])["usage"].agg(["mean", "count"])
    return [
        MinuteMean(key, int(begin_ms), float(row["mean"]), int(row["count"]))
        for (key, begin_ms), row in grouped.iterrows()
    ]


def _report(
    kafka: KafkaSettings, went_in: _Contents, ordered: _Contents, job: _Job
) -> RunnerReport:
    topic = ordered.report.topic
    late = _Contents.read(kafka, f"{topic}.late")
    quarantined = _Contents.read(kafka, f"{topic}.quarantine")
    came_out = ordered.ids + late.ids + quarantined.ids
    return RunnerReport(
        seconds=job.seconds,
        read=job.counts["read"],
        released=ordered.report.records,
        late=late.report.records,
        quarantined=quarantined.report.records,
        held=job.counts["held"],
        lost=len(went_in.ids.keys() - came_out.keys()),
        duplicates=sum(count - 1 for count in came_out.values()),
        after=ordered.report,
    )


@dataclass(frozen=True, slots=True)
class _Contents:
    """What the independent reader finds in a topic; nothing in a missing one."""

    report: TopicReport
    ids: Counter[bytes]  # how often each event is there, by event id
    arrivals: Sequence[Arrival]
    rows: Mapping[tuple[int, int], TopicRecord]  # by partition and place in it

    @classmethod
    def read(cls, kafka: KafkaSettings, topic: str) -> Self:
        event_time = parse_event_time_spec(_EVENT_TIME)

        def time_of(record: TopicRecord) -> int | None:
            return event_time.of(record.value, record.headers, record.timestamp_ms)

        check = TopicCheck(topic, time_of)
        ids: Counter[bytes] = Counter()
        arrivals: list[Arrival] = []
        rows: dict[tuple[int, int], TopicRecord] = {}
        for record in read_topic(kafka, topic) if topic_exists(kafka, topic) else ():
            check.observe(record)
            event_id = record.header(EVENT_ID_HEADER) or b""
            ids[event_id] += 1
            rows[record.partition, record.offset] = record
            event_time_ms = time_of(record)
            if event_time_ms is not None:
                arrivals.append(
                    Arrival(
                        key=record.key or b"",
                        producer=event_id.partition(b":")[0].decode(),
                        offset=record.offset,
                        event_time_ms=event_time_ms,
                    )
                )
        return cls(check.report(), ids, arrivals, rows)


def _say(line: str) -> None:
    print(f"demo: {line}", file=sys.stderr, flush=True)  # noqa: T201 - the demo's progress


def _milliseconds(delay: str) -> int | None:
    """Return a delay in ms; None for a delay that is learned."""
    if delay == "auto":
        return None
    try:
        return milliseconds(TypeAdapter(Duration).validate_python(delay))
    except ValidationError as error:
        raise DemoError(f"--delay {delay!r}: {error.errors()[0]['msg']}") from error


def plot_arrivals(
    before: Sequence[Arrival],
    after: Sequence[Arrival],
    *,
    inversions: tuple[int, int],
    delay_ms: int | None,
) -> Figure:
    """Draw one key's events, event time over place, as they arrived and as they were released.

    The key is the one with the most events, so that the picture shows one order and not several.
    """
    # Imported here, so that the command line does not wait for a rarely used library.
    agg = load("matplotlib.backends.backend_agg", _PICTURE)

    figure: Figure = load("matplotlib.figure", _PICTURE).Figure(
        figsize=(11, 5), dpi=110, layout="constrained"
    )
    agg.FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    key = _busiest_key(before)
    start_ms = min((arrival.event_time_ms for arrival in before), default=0)
    producers = sorted({arrival.producer for arrival in before})
    arrived = _of_key(before, key)
    if delay_ms is not None:
        _draw_delay(left, arrived, start_ms, delay_ms)
    _draw(left, arrived, producers, start_ms)
    _draw(right, _of_key(after, key), producers, start_ms, wider=_WIDER)
    left.set_title(f"before: as it arrived in Kafka\n{inversions[0]:,} inversions in all keys")
    right.set_title(f"after: as the reorder job released it\n{inversions[1]:,} inversions")
    left.set_xlabel("place in the order of arrival")
    right.set_xlabel("place in the order of release")
    left.set_ylabel("event time, s since the first")
    drawn, labels = left.get_legend_handles_labels()
    figure.legend(
        drawn, labels, loc="outside lower center", ncols=len(drawn), frameon=False, markerscale=3
    )
    figure.suptitle(
        f"Events of key {key.decode(errors='replace')}. An inversion: an event after a newer one "
        "of its key"
    )
    return figure


@dataclass(frozen=True, slots=True)
class Arrival:
    key: bytes
    producer: str
    offset: int  # its place in its partition
    event_time_ms: int  # when it happened, epoch milliseconds


def _busiest_key(arrivals: Sequence[Arrival]) -> bytes:
    counts: dict[bytes, int] = {}
    for arrival in arrivals:
        counts[arrival.key] = counts.get(arrival.key, 0) + 1
    return max(sorted(counts), key=counts.__getitem__, default=b"")


def _of_key(arrivals: Sequence[Arrival], key: bytes) -> list[Arrival]:
    return sorted((a for a in arrivals if a.key == key), key=lambda arrival: arrival.offset)


def _draw(
    axes: Axes,
    arrivals: Sequence[Arrival],
    producers: Sequence[str],
    start_ms: int,
    *,
    wider: float = 0.0,
) -> None:
    """Draw each producer's events in a colour of its own, over their place.

    Each may be drawn wider than the next, over it: where all have the same event times, too, each
    is then seen.
    """
    for number, producer in enumerate(producers):
        places = [place for place, a in enumerate(arrivals) if a.producer == producer]
        times = [(arrivals[place].event_time_ms - start_ms) / 1000 for place in places]
        colour = _COLOURS[number % len(_COLOURS)]
        label = producer.partition("~")[0]
        width = _NARROWEST + wider * (len(producers) - 1 - number)
        axes.scatter(places, times, s=width**2, color=colour, label=label, linewidths=0)
    axes.grid(visible=True, alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_delay(axes: Axes, arrivals: Sequence[Arrival], start_ms: int, delay_ms: int) -> None:
    """Draw how far an event may be behind the newest one in the order without being late."""
    times = (arrival.event_time_ms - start_ms for arrival in arrivals)
    newest = [time_ms / 1000 for time_ms in accumulate(times, max)]
    limits = [max(0.0, time_s - delay_ms / 1000) for time_s in newest]
    label = f"the delay, {delay_ms / 1000:g} s before the newest event: an event below it is late"
    axes.plot(limits, color=_LIMIT, linestyle="--", linewidth=1.2, label=label)
    axes.fill_between(range(len(limits)), 0, limits, color=_LIMIT, alpha=0.12, linewidth=0)

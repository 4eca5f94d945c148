"""How far each key has been released: folds of the runs, and the rows judged by them.

What is kept, and why that suffices, stands in `sequitur.consumer.lateness.key_state`. Here are the
Spark jobs: one folds runs that are through into one row a key; one looks up the keys of the few
rows behind the frontier. Either reads two columns, and of the rows only those that can matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer import BEFORE_ALL_TIME_MS, Fold, LateJudge, ReorderMode
from sequitur.pipelines.rows.columns import RUN_COLUMNS, RUN_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from sequitur.consumer import KeyLookup, Run, StepEntry, Upkeep
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.store.checkpoint import Checkpoint

KEY_SCHEMA: Final = (
    "key binary, event_time_ms bigint, topic string, partition int, offset bigint, "
    "output_partition int"
)
"""Where the last released row came from is kept in latest mode alone: there it breaks ties."""
_PLACE: Final = ("event_time_ms", "topic", "partition", "offset")

_FEW_ROWS: Final = 50_000
"""Up to so many rows, their keys are sent to all tasks, and nothing else has to be moved."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of the rows behind the frontier.

    Attributes:
        rescued: Rows that go out after all.
        late: Rows that don't.
    """

    rescued: int
    late: int


class KeyHistory:
    """The last released event time of keys.

    Args:
        spark: The session.
        checkpoint: Where runs and folds stand.
        mode: Which rows pass: those not older than the last of their key, or those after it.
        runs: The runs.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: Checkpoint, mode: ReorderMode, runs: SortedRuns
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._runs = runs
        self._mode = mode
        self._latest = mode is ReorderMode.LATEST
        self._columns = ("key", *(_PLACE if self._latest else _PLACE[:1]), "output_partition")

    def fold(self, upkeep: Upkeep, step: int, *, name: str, horizon_ms: int) -> Fold:
        """Put runs and folds into one new fold, without keys that were last seen long ago.

        Args:
            upkeep: What to read. It stays where it is: until the step is logged, it counts.
            step: The step that does it.
            name: The fold's folder.
            horizon_ms: Keys last released behind it are left out.
        """
        observed = Observation(f"fold-{step}")
        folder = self._checkpoint.keys_folder(name)
        (
            self._released(upkeep.runs, upkeep.folds)
            .where(F.col("event_time_ms") >= horizon_ms)
            # The fewer tasks, the more of a key's rows are brought together before they are moved.
            .coalesce(self._spark.sparkContext.defaultParallelism)
            .groupBy("key")
            .agg(self._last(), F.first("output_partition").alias("output_partition"))
            .select("key", *self._place("last"), "output_partition")
            .observe(
                observed,
                F.count(F.lit(1)).alias("keys"),
                F.max("event_time_ms").alias("last"),
            )
            .write.parquet(folder)
        )
        seen = observed.get
        return Fold(
            step=step,
            keys=seen["keys"],
            size_bytes=self._checkpoint.size_bytes(folder),
            name=name,
            max_event_time_ms=BEFORE_ALL_TIME_MS if seen["last"] is None else seen["last"],
            files=self._checkpoint.held.written_files(folder, seen["keys"]),
        )

    def judge(self, entry: StepEntry, *, first_behind_ms: int, frontier_ms: int) -> Judged:
        """Decide on the rows that a step found behind the frontier, and write that to a file.

        What is decided, and by what, says `LateJudge`.

        Args:
            entry: The step, not logged yet; the run with these rows is the last of its runs.
            first_behind_ms: The smallest event time of these rows.
            frontier_ms: All rows of earlier steps up to it are out.
        """
        behind, run = self._runs.behind(entry), entry.runs[-1]
        event_time = F.col("event_time_ms")
        lookup = key_lookup(entry, first_behind_ms)
        runs, folds, after_ms = lookup.runs, lookup.folds, lookup.after_ms
        judge = LateJudge(self._mode, lookup.horizon_ms)
        wanted = behind.where(event_time >= after_ms).select("key").distinct()
        rows = behind.withColumn("last", F.lit(None).cast(self._last_type))
        if runs or folds:
            released = self._released(runs, folds).where(
                (event_time >= after_ms) & (event_time <= frontier_ms)
            )
            few = run.behind <= _FEW_ROWS
            last = (
                released.join(F.broadcast(wanted) if few else wanted, "key", "left_semi")
                .groupBy("key")
                .agg(self._last())
            )
            rows = behind.join(F.broadcast(last) if few else last, "key", "left")
        is_late = judge.is_late(
            event_time_ms=event_time,
            has_key=F.col("key").isNotNull(),
            place=F.struct(*_PLACE) if self._latest else event_time,
            last=F.col("last"),
            has_last=F.col("last").isNotNull(),
        )
        reasons = F.when(is_late, F.lit(judge.reason))
        return self._write(rows.withColumn("reason", reasons), entry.name)

    def _write(self, rows: DataFrame, name: str) -> Judged:
        observed = Observation(f"judge-{name}")
        (
            rows.select(*RUN_COLUMNS, self._place("last")[0].alias("last_released_ms"))
            .observe(
                observed,
                F.count(F.lit(1)).alias("rows"),
                F.count("reason").alias("late"),
            )
            .write.parquet(self._checkpoint.behind_folder(name))
        )
        seen = observed.get
        return Judged(rescued=seen["rows"] - seen["late"], late=seen["late"])

    def _last(self) -> Column:
        """Return a key's last row: its event time, in latest mode its place in the source, too."""
        return F.max(F.struct(*_PLACE) if self._latest else "event_time_ms").alias("last")

    @property
    def _last_type(self) -> str:
        place = "event_time_ms: bigint, topic: string, partition: int, offset: bigint"
        return f"struct<{place}>" if self._latest else "bigint"

    def _place(self, last: str) -> list[Column]:
        if self._latest:
            return [F.col(last)[name].alias(name) for name in _PLACE]
        return [F.col(last).alias(_PLACE[0])]

    def _released(self, runs: Sequence[Run], folds: Sequence[Fold]) -> DataFrame:
        """Key and place of all rows with a key in runs and folds."""
        parts = []
        if runs:
            folders = [self._checkpoint.held.whole_run(run) for run in runs]
            parts.append(self._spark.read.schema(RUN_SCHEMA).parquet(*folders))
        if folds:
            folders = [self._checkpoint.held.whole_fold(fold) for fold in folds]
            parts.append(self._spark.read.schema(KEY_SCHEMA).parquet(*folders))
        narrow = [part.select(*self._columns) for part in parts]
        both = narrow[0] if len(narrow) == 1 else narrow[0].unionAll(narrow[1])
        return both.where(F.col("key").isNotNull())


def key_lookup(entry: StepEntry, first_behind_ms: int) -> KeyLookup:
    """Return what to read to judge the rows that a step found behind the frontier.

    Args:
        entry: The step; the run with these rows is the last of its runs.
        first_behind_ms: The smallest event time of these rows.
    """
    if entry.keys is None:
        raise RuntimeError(f"step {entry.step} keeps nothing of its keys")
    return entry.keys.lookup(entry.runs[:-1], first_behind_ms=first_behind_ms)

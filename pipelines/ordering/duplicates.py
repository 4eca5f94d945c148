"""Duplicates of an event: rows with the id of one that was read before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer import LATE
from sequitur.pipelines.rows.columns import RELEASE_ORDER, SOURCE_ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sequitur.consumer import StepEntry
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.store.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class FoundDuplicates:
    """What a step drops as duplicates.

    Attributes:
        count: All of them.
        behind: Those of them that were behind the frontier.
    """

    count: int
    behind: int


class DuplicateFinder:
    """Finds duplicates by a header.

    Args:
        checkpoint: Where what is found is written to.
        runs: The runs there.
        header: The header with the event id; None when duplicates are not looked for.
    """

    def __init__(self, checkpoint: Checkpoint, runs: SortedRuns, header: str | None) -> None:
        self._checkpoint = checkpoint
        self._runs = runs
        self._header = header

    def find(
        self, entry: StepEntry, *, first_behind_ms: int | None, frontier_ms: int
    ) -> FoundDuplicates:
        """Find the duplicates among the rows that a step is about to release or judge.

        Of rows with the same id in a step the first in the order of release stays. None stays when
        one with that id was there in an earlier step: for that, rows up to the frontier are looked
        through that are not older than the oldest row behind it, or than `deduplicated_ms`. So a
        duplicate must have the event time of its original.

        Args:
            entry: The step, not logged yet; a run of its own is the last of its runs.
            first_behind_ms: The smallest event time of its rows behind the frontier, None without
                such rows.
            frontier_ms: All rows of earlier steps up to it are out.
        """
        on_time = self._runs.reached(entry)
        candidates = [] if on_time is None else [self._identified(on_time, is_out=False)]
        after_ms = entry.previous_frontier_ms
        if first_behind_ms is not None:
            after_ms = min(after_ms, first_behind_ms)
            behind = self._runs.read(entry.runs[-1]).where(F.col("reason") == LATE)
            candidates.append(self._identified(behind, is_out=False))
        if not candidates:
            return FoundDuplicates(0, 0)
        after_ms = max(after_ms, entry.deduplicated_ms or 0)
        earlier = [r for r in entry.runs if r.step != entry.step and r.reach_ms >= after_ms]
        if earlier:
            event_time = F.col("event_time_ms")
            out = (event_time >= after_ms) & (event_time <= frontier_ms)
            candidates.append(self._identified(self._runs.read(*earlier).where(out), is_out=True))
        rows = candidates[0]
        for others in candidates[1:]:
            rows = rows.unionAll(others)
        return self._write(rows, entry.name)

    def _write(self, rows: DataFrame, name: str) -> FoundDuplicates:
        of_one_event = Window.partitionBy("event_id").orderBy(F.desc("is_out"), *RELEASE_ORDER)
        observed = Observation(f"duplicates-{name}")
        (
            rows.where(F.col("event_id").isNotNull())
            .withColumn("place", F.row_number().over(of_one_event))
            .where((F.col("place") > 1) & ~F.col("is_out"))
            .observe(
                observed,
                F.count(F.lit(1)).alias("count"),
                F.count(F.when(F.col("reason") == LATE, F.lit(1))).alias("behind"),
            )
            .select(*SOURCE_ORDER)
            .write.parquet(self._checkpoint.duplicates_folder(name))
        )
        seen = observed.get
        return FoundDuplicates(seen["count"], seen["behind"])

    def _identified(self, rows: DataFrame, *, is_out: bool) -> DataFrame:
        named = F.filter("headers", lambda header: header["key"] == F.lit(self._header))
        return rows.select(
            F.try_element_at(named, F.lit(1))["value"].alias("event_id"),
            F.lit(is_out).alias("is_out"),
            *RELEASE_ORDER,
            "reason",
        )

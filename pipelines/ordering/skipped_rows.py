"""Rows that are held when the subscription acks them: they are left out when they are due.

By their age (a time to live), or since somebody skipped them. They are found before the step is
logged, and stand beside the duplicates: what a step leaves out is decided once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sequitur.pipelines.ordering.duplicate_tasks import PLACES_SCHEMA
from sequitur.pipelines.ordering.runs import duplicates_files, reached_parts
from sequitur.pipelines.rows.columns import SOURCE_ORDER
from sequitur.pipelines.rows.run_rows import RunRows
from sequitur.pipelines.rows.run_writer import sources
from sequitur.pipelines.rows.selection import Places
from sequitur.pipelines.store.files import new_folder
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from sequitur.consumer import StepEntry
    from sequitur.pipelines.ordering.context import JobContext


def without_acked(job: JobContext, entry: StepEntry) -> StepEntry:
    """Leave out the rows that a step would release and that are acked; count them as skipped."""
    subscription = job.subscription
    if subscription is None or not subscription.skips_held:
        return entry
    parts = reached_parts(job.checkpoint, entry)
    if not parts:
        return entry
    duplicates = Places(duplicates_files(job.checkpoint, entry))
    folder = job.checkpoint.location(f"repeats/{entry.name}")
    new_folder(folder, may_be_there=True)  # where duplicates were looked for
    with PartFile(folder, PLACES_SCHEMA) as file:
        for read in RunRows(parts, None, SOURCE_ORDER).pieces():
            rows = duplicates.without(read)
            if not len(rows):
                continue
            offsets, is_acked = rows["offset"].to_numpy(), np.zeros(len(rows), np.bool_)
            for source, place in sources(rows):
                is_acked[place] = subscription.acked_among(source, offsets[place])
            if is_acked.any():
                file.write(rows.filter(pa.array(is_acked)).select(SOURCE_ORDER))
    if file.name is None:
        return entry
    skipped = entry.staged.skipped + file.rows
    return replace(
        entry,
        staged=replace(entry.staged, skipped=skipped),
        repeats={**entry.repeats, file.name: file.rows},
    )

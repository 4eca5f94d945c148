"""What the ackers' verdicts mean for each event, where a topology runs in several stages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from consumer.topology import AckFlag, FailReason, Failure, Ordering, Place
from consumer.topology._pending import EventOutcome, settle
from pipelines._process_batch import Answer, Batch, Given
from pipelines._process_files import Waiting, read_table
from pipelines._process_settling import settle_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumer.topology._pending import Settlement

VERDICTS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("attempts", pa.int32()),
        ("retry_at_ms", pa.int64()),
        ("is_dead", pa.bool_()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("path", pa.string()),
    ]
)
"""Of an event that is not done: what becomes of it."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The roots that ackers have found not to be done.

    Attributes:
        ids: Their ids.
        flags: Their flags.
        failures: Why roots failed, as far as a task told.
        shared: Ids of roots that share an output.
        detail: What may be why roots were never acked.
    """

    ids: Any
    flags: Any
    failures: Mapping[int, Failure]
    shared: Sequence[tuple[int, ...]]
    detail: str = ""


def decide(batch: Batch, roots_files: Sequence[str], found: Unfinished) -> list[pa.Table]:
    """What becomes of the events that are not done, in a table for each of the first stage's tasks.

    Args:
        batch: What all tasks share.
        roots_files: The events that these have given out.
        found: Which are not done.
    """
    tables = [read_table(path) for path in roots_files]
    roots = pa.concat_tables(tables)
    ids = roots["id"].to_numpy()
    attempts = roots["attempt"].to_numpy()
    order = np.argsort(ids)

    def places_of(wanted: Any) -> Any:
        return order[np.searchsorted(ids, np.asarray(wanted, np.uint64), sorter=order)]

    never_acked = Failure(FailReason.NEVER_ACKED, found.detail, (batch.topology.spout.id,))
    failures: dict[int, Failure] = {}
    failed, held = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.bool_)
    places = places_of(found.ids)
    for place, root, flags in zip(
        places.tolist(), found.ids.tolist(), found.flags.tolist(), strict=True
    ):
        failure = found.failures.get(root)
        if failure is None and flags & AckFlag.HELD:
            held[place] = True
        else:
            failures[place] = failure or never_acked
            failed[place] = True
    # What kills a process is given up at once, however often it was tried.
    counted = attempts.astype(np.int64)
    for place, failure in failures.items():
        if failure.reason is FailReason.CRASH:
            counted[place] = batch.retry.max_attempts
    keys = roots["key"].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    settled = settle(
        keys.astype(np.int64),
        counted,
        failed,
        held,
        batch.now_ms,
        policy=batch.retry,
        random=random.Random(hash(batch.seed)).random(),
        shared=[places_of(several) for several in found.shared],
        keeps_order=batch.rules.ordering is Ordering.KEY,
    )
    left = settled.outcomes != EventOutcome.DONE
    tables_out, begin = [], 0
    for table in tables:
        own = np.flatnonzero(left[begin : begin + len(table)])
        rows = table.take(pa.array(own))
        tables_out.append(_verdicts(rows, own + begin, failures, settled))
        begin += len(table)
    return tables_out


def _verdicts(
    rows: pa.Table, places: Any, failures: Mapping[int, Failure], settled: Settlement
) -> pa.Table:
    failed = [failures.get(place) for place in places.tolist()]
    attempts = rows["attempt"].to_numpy() - np.array([one is None for one in failed], np.int32)
    retry_at_ms = settled.retry_at_ms[places]
    return pa.table(
        {
            "topic": rows["topic"],
            "partition": rows["partition"],
            "offset": rows["offset"],
            "attempts": pa.array(attempts.astype(np.int32)),
            "retry_at_ms": pa.array(retry_at_ms, mask=retry_at_ms == 0),
            "is_dead": pa.array(settled.outcomes[places] == EventOutcome.DEAD),
            "reason": [one and one.reason.value for one in failed],
            "detail": [one and one.detail for one in failed],
            "path": [one and " > ".join(one.path) for one in failed],
        },
        schema=VERDICTS_SCHEMA,
    )


@dataclass(frozen=True, slots=True)
class VerdictTask:
    """Writes down the events of a task of the first stage that are not done.

    Attributes:
        batch: What all tasks share.
        given: The task's events.
        window: Which of the new ones it took in.
        verdicts: File of a table of `VERDICTS_SCHEMA`.
    """

    batch: Batch
    given: Given
    window: tuple[int, int | None]
    verdicts: str

    def __call__(self) -> Answer:
        """Write them down."""
        rows = read_table(self.verdicts).to_pydict()
        columns = [rows[name] for name in VERDICTS_SCHEMA.names]
        verdicts = {Place(*told[:3]): told[3:] for told in zip(*columns, strict=True)}
        left: list[Waiting] = []
        dead: list[Waiting] = []
        answer = Answer()
        for _, event in self.given.all(self.window):
            verdict = verdicts.get(Place(*event[4:7]))
            if verdict is None:
                continue
            attempts, retry_at_ms, is_dead, reason, detail, path = verdict
            one = Waiting(event, attempts, retry_at_ms, reason, detail, path)
            (dead if is_dead else left).append(one)
            if reason is not None:
                answer.failed[reason] = answer.failed.get(reason, 0) + 1
        settle_files(self.batch, answer, left, dead, list(verdicts))
        return answer

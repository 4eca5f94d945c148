"""How fast the distributed acker is: from rows on disk to verdicts, in Spark's tasks.

Beside it, in the same session, what Spark's own aggregation does with the same rows.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer.topology.step.tasks import AckerTask
from sequitur.pipelines.session import build_session
from sequitur.pipelines.spark.tasks import SparkWorkers
from sequitur.pipelines.topology.files import ACKS_SCHEMA, read_acks, write_acks

_ROOTS: Final = 3_000_000
_FILES: Final = 4
_ACKERS: Final = 4
_RUNS: Final = 5


def messages(seed: int, roots: int) -> tuple[Any, Any, Any]:
    """Of each root, three messages: a spout's, a bolt's, and that of the last bolt."""
    random = np.random.default_rng(seed)
    ids, first, second = random.integers(1, 1 << 64, (3, roots), dtype=np.uint64)
    flags = np.zeros((3, roots), np.uint8)
    flags[0] = 1
    order = random.permutation(3 * roots)
    values = np.concatenate([first, first ^ second, second])
    return np.tile(ids, 3)[order], values[order], flags.reshape(-1)[order]


def measure() -> list[dict[str, Any]]:
    """Acks a second, cold and warm, and those of Spark's own aggregation."""
    acks = 3 * _ROOTS
    spark = build_session("acker benchmark")
    try:
        with tempfile.TemporaryDirectory(prefix="sequitur-bench-") as name:
            folder = Path(name)
            rows = [messages(seed, _ROOTS // _FILES) for seed in range(_FILES)]
            files = tuple(write_acks(folder, *one, _ACKERS) for one in rows)
            tasks = [AckerTask(files, number, read_acks) for number in range(_ACKERS)]
            ours = []
            for _ in range(_RUNS):
                begun = time.perf_counter()
                verdicts = SparkWorkers(spark).run(tasks)
                ours.append(acks / (time.perf_counter() - begun))
                if sum(acked for acked, _, _ in verdicts) != _ROOTS:
                    raise RuntimeError("the acker has not found every tree done")
            for number, one in enumerate(rows):
                columns = [
                    pa.array(column.view(kind))
                    for column, kind in zip(one, ("i8", "i8", "i1"), strict=True)
                ]
                table = pa.table(dict(zip(ACKS_SCHEMA.names, columns, strict=True)))
                pq.write_table(table, folder / f"{number}.parquet")
            theirs = []
            for _ in range(_RUNS):
                begun = time.perf_counter()
                read = spark.read.parquet(*(str(path) for path in folder.glob("*.parquet")))
                done = read.groupBy("root").agg(
                    F.bit_xor("value").alias("value"), F.bit_or("flags").alias("flags")
                )
                if done.where("value = 0 and flags = 1").count() != _ROOTS:
                    raise RuntimeError("Spark has not found every tree done")
                theirs.append(acks / (time.perf_counter() - begun))
    finally:
        spark.stop()
    named = {
        "acker.distributed.first": ours[0],
        "acker.distributed.warm": float(np.median(ours[1:])),
        "acker.spark_bit_xor.first": theirs[0],
        "acker.spark_bit_xor.warm": float(np.median(theirs[1:])),
    }
    return [
        {"name": name, "value": round(value), "unit": "acks/s"} for name, value in named.items()
    ]

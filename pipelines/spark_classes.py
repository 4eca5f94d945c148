"""Writes an archive of Spark's classes, by which a local job starts with a third less CPU.

`sequitur setup` writes it. It stands in `$SEQUITUR_CACHE` or else the user's cache folder, 160 MB,
and serves one installation of Spark. The next start of a job finds it. Without it a job starts as
well, and so it does where the archive does not fit, which the JVM checks.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.standard_streams import reserve_descriptors
from sequitur.base.text import renamed
from sequitur.pipelines.launch import (
    DEFAULT_MASTER,
    class_archive,
    spark_submit_command,
    spark_submit_environment,
)
from sequitur.pipelines.session import build_session
from sequitur.pipelines.spark_settings import spark_home
from sequitur.pipelines.submitted import is_submitted

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S: Final = 600
_BATCHES: Final = 2
_JOB: Final = Path(__file__)


def write_archive() -> bool:
    """Write the archive, unless there is one; False if it could not be written."""
    with tempfile.TemporaryDirectory() as folder:
        archive = class_archive(Path(folder))
        if archive.shared.exists():
            return True
        sys.stderr.write(f"writing an archive of Spark's classes, once: {archive.shared}\n")
        java = f"-XX:TieredStopAtLevel=1 {archive.create()}"
        command = spark_submit_command(
            [],
            job=_JOB,
            master=DEFAULT_MASTER,  # the archive serves jobs on one machine
            options={"spark.driver.extraJavaOptions": java},
        )
        # Its messages about classes that it cannot keep are long, and no fault.
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run(
                command,
                env=spark_submit_environment(os.environ),
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
            archive.publish()
            _note_whose(archive.shared)
        return archive.shared.exists()


def _note_whose(archive: Path) -> None:
    """Note the Spark of an archive, and delete the archives of installations that are gone."""
    with contextlib.suppress(OSError):
        archive.with_suffix(".of").write_text(str(spark_home()), "utf-8")
        for note in archive.parent.glob("spark-*.of"):
            if not Path(note.read_text("utf-8")).exists():
                note.with_suffix(".jsa").unlink(missing_ok=True)
                note.unlink()


def _load() -> None:
    """Run what a job runs, on a few rows, so that the JVM loads its classes."""

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    def process(frame: Any, _batch: int) -> None:
        frame.mapInArrow(same, frame.schema).count()
        frame.sort("value").collect()

    spark = build_session("classes")
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        query = rows.writeStream.foreachBatch(process).option("checkpointLocation", folder).start()
        while query.isActive and len(query.recentProgress) < _BATCHES:
            query.awaitTermination(1)
        query.stop()
    spark.stop()


if __name__ == "__main__":
    reserve_descriptors()
    if is_submitted():
        _load()
    else:  # until 0.1.0
        told = renamed("python -m sequitur.pipelines.spark_classes", "sequitur setup")
        sys.stderr.write(f"{told}\n")
        if not write_archive():
            sys.stderr.write(
                "the archive of Spark's classes could not be written. Jobs start without it\n"
            )

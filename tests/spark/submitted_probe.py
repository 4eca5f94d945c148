"""Run by spark-submit as the jobs are, or in its place as `sequitur reorder` is."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

if __name__ == "__main__" and "PYSPARK_GATEWAY_PORT" not in os.environ:
    from sequitur.pipelines.launch import run_spark_submit, spark_submit_command

    run_spark_submit(
        spark_submit_command(sys.argv[1:], job=Path(__file__), options={"spark.app.name": "größe"})
    )

from pyspark import SparkContext

from sequitur.base.program import take_stdout
from sequitur.errors import CheckpointError
from sequitur.pipelines.python_path import MODULES, leave_out_archives
from sequitur.pipelines.session import build_session
from sequitur.pipelines.spark.tasks import each_partition
from sequitur.pipelines.store.hadoop_folder import check_nameable
from sequitur.pipelines.submitted import check_arguments, separate_output

TASK = "--task"
_PATHS = ("/tmp/prüfung", "/tmp/plain")


def _names(path: str) -> bool:
    """Whether the JVM can name a file."""
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=SparkContext._jvm))
    with contextlib.suppress(CheckpointError):
        check_nameable(spark, path, "checkpoint")
        return True
    return False


def _in_a_task(beside: str) -> dict[str, Any]:
    """Where the process of a task finds modules, and what a program that it starts prints."""
    spark = build_session("probe")
    spark.sparkContext.environment[MODULES] = beside

    def files(_: int) -> dict[str, Any]:
        names = ("random", "json", "types", "logging", "socket", "numpy", "pyarrow", "of_topology")
        found = {name: importlib.import_module(name).__file__ for name in names}
        program = [sys.executable, str(Path(beside).with_name("program.py"))]
        return {**found, "said": subprocess.run(program, capture_output=True, check=False).stdout}

    (found,) = each_partition(spark, files, 1)
    spark.stop()
    return cast("dict[str, Any]", {**found, "said": found["said"].decode()})


if __name__ == "__main__":
    leave_out_archives()
    separate_output()
    warnings.warn("a warning", stacklevel=1)
    words = sys.argv[1:]
    with take_stdout() as output:
        print("printed", flush=True)  # noqa: T201
        subprocess.run(["echo", "said by a child"], check=True)
        sys.stderr.write("an error\n")
        jvm: Any = SparkContext._jvm
        jvm.java.lang.System.out.println("said by Java")
        found: dict[str, Any] = {"words": words, "names": {one: _names(one) for one in _PATHS}}
        if words[-2:-1] == [TASK]:
            found |= _in_a_task(words[-1])
        output.write(json.dumps(found) + "\n")
    check_arguments()
    sys.exit(4)

"""Run by spark-submit as the jobs are, or in its place as `sequitur reorder` is; no session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

if __name__ == "__main__" and "PYSPARK_GATEWAY_PORT" not in os.environ:
    from sequitur.pipelines.launch import run_spark_submit, spark_submit_command

    run_spark_submit(spark_submit_command(sys.argv[1:], job=Path(__file__)))

from sequitur.base.program import take_stdout
from sequitur.pipelines.python_path import leave_out_archives
from sequitur.pipelines.submitted import separate_output

if __name__ == "__main__":
    leave_out_archives()
    separate_output()
    warnings.warn("a warning", stacklevel=1)
    with take_stdout() as output:
        print("printed", flush=True)  # noqa: T201
        subprocess.run(["echo", "said by a child"], check=True)
        sys.stderr.write("an error\n")
        output.write(json.dumps({"words": sys.argv[1:]}) + "\n")
    sys.exit(4)

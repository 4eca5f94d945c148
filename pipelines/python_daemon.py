"""Spark's Python daemon, with what our tasks import loaded before it forks their processes.

Each Python process of Spark's is a fork of its daemon (`spark.python.daemon.module`). What is
loaded here is loaded once, while Spark plans its first batch, and not by each process when its
first task waits for it. So is what the garbage collector may pass over: see
`sequitur.pipelines.spark.tasks`. It is named in `sequitur.pipelines.session` and imported by none
of ours, since it imports packages of each level.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import Any

from sequitur.pipelines.python_path import MODULES, add_modules, leave_out_archives

if __name__ == "__main__":
    leave_out_archives()
    add_modules(os.environ.pop(MODULES, None))

import pandas as pd  # noqa: F401 - pyarrow loads it at the first array that it makes
from pyspark import daemon

import sequitur.pipelines.ordering.key_tasks
import sequitur.pipelines.ordering.source
import sequitur.pipelines.rows.run_writer
import sequitur.pipelines.rows.selection
import sequitur.pipelines.sink.sink
import sequitur.pipelines.topology.batch  # noqa: F401 - so that they are loaded


class _Traceback:
    """Python's `traceback`, silent where the process that asked is gone.

    The job has ended then, or given a task up; nobody has to be told by each of its workers.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


daemon.traceback = _Traceback()  # type: ignore[assignment,attr-defined] # it stands for a module

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    daemon.manager()

"""Spark's Python daemon, with what our tasks import loaded before it forks their processes.

Each Python process of Spark's is a fork of its daemon (`spark.python.daemon.module`). What is
loaded here is loaded once, while Spark plans its first batch, and not by each process when its
first task waits for it. So is what the garbage collector may pass over: see `pipelines._tasks`.
"""

from __future__ import annotations

import gc

from pyspark import daemon

import pipelines._key_tasks
import pipelines._process_verdicts
import pipelines._run_writer
import pipelines._sink  # noqa: F401 - so that it is loaded

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    daemon.manager()

"""Where Arrow's memory comes from in the processes of a job on this machine."""

from __future__ import annotations

import os
from typing import Final

import pyarrow as pa

_VARIABLE: Final = "ARROW_DEFAULT_MEMORY_POOL"
"""The variable by which Arrow itself chooses a pool."""
_POOL: Final = "jemalloc"


def use_small_pool() -> None:
    """Have Arrow's arrays in jemalloc, unless the environment names a pool.

    Arrow's own choice, mimalloc, gives little back to the system: with 40 MiB of arrays, a job
    whose checkpoint was in S3 kept 300 MiB. Processes of tasks that read keys in files, too, have a
    quarter less with jemalloc.
    """
    if _VARIABLE not in os.environ and _POOL in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())

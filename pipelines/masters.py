"""Spark masters of jobs on this machine."""

from __future__ import annotations

from typing import Final

DEFAULT_MASTER: Final = "local[2,4]"
"""Two tasks side by side, each tried four times: with `local[2]` Spark runs a task once."""

WAITING_MASTER: Final = "local[4,4]"
"""For bolts with `concurrency`, which wait more than they work: two more tasks read meanwhile."""

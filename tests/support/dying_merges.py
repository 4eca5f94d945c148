"""Lives of a job that die in the middle of a merge of keys; see `tests.spark.keyed_topology`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.spark.kill_rounds import ROWS_A_BATCH
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.spark.kill_rounds import Rounds
    from tests.support.job_process import JobProcess

_MOST_WRITES: Final = 18
"""About those of three merges."""


def die_in_a_merge(rounds: Rounds, life: JobProcess) -> None:
    """Have a life die by itself at a write of a merge. It reads more until it does."""
    left = Path(os.environ["MERGE_WRITES"])
    left.write_text(str(rounds.random.randint(1, _MOST_WRITES)))
    deadline_s = time.monotonic() + 5 * PATIENCE_S
    while life.process.poll() is None:
        assert time.monotonic() < deadline_s, "no merge has come so far"
        if rounds._is_settled():
            rounds.feed(ROWS_A_BATCH)
        time.sleep(rounds.place.poll_s)
    assert not left.exists(), life.complaints()

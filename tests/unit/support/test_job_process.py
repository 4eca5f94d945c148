"""Lives of jobs, as tests that hold, end and kill them see them."""

from __future__ import annotations

import os
import sys
from typing import Final

from tests.support.job_process import JobProcess
from tests.support.waiting import PATIENCE_S

_STEPS: Final = 20_000


def test_a_life_that_nobody_reads_goes_on() -> None:
    """It says more than a pipe holds; and whoever asks later is told all."""
    program = f"for number in range({_STEPS}): print(f'{{{{\"step\": {{number}}}}}}')"
    with JobProcess([sys.executable, "-c", program], os.environ) as life:
        assert life.process.wait(PATIENCE_S) == 0
        assert [said["step"] for said in life.steps()] == list(range(_STEPS))
        assert life.end() == ""

"""The numbers that order the records of a step, and how many tasks and stages have them."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import Bolt, TopologyBuilder, TopologyError
from sequitur.consumer.topology.engine.plan import plan
from sequitur.consumer.topology.step.batch import emissions

if TYPE_CHECKING:
    from sequitur.consumer.topology import Tuple

_LAST_STAGE, _LAST_TASK, _WAVES = 1023, 4095, 30_000


class _Pass(Bolt):
    fields = ("key", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Do nothing."""


def _chain(length: int) -> TopologyBuilder:
    """Return a topology of as many stages as it has bolts, and the spout's."""
    builder = TopologyBuilder("chain")
    builder.set_spout("b0")
    for number in range(1, length + 1):
        builder.set_bolt(f"b{number}", _Pass(), 2).fields_grouping(f"b{number - 1}", "key")
    return builder


@pytest.mark.promise("process-topology-024-stages")
def test_records_are_numbered_by_wave_then_stage_then_task() -> None:
    """The first of each is behind the last of the one before, in 63 bits."""
    tasks = [
        (wave, stage, task)
        for wave in (0, 1, 1000, _WAVES)
        for stage in (0, 1, 31, 32, _LAST_STAGE)
        for task in (0, 1, 1023, 1024, _LAST_TASK)
    ]
    firsts = [next(emissions(*one)) for one in tasks]
    assert all(before + 1_000_000 < after for before, after in pairwise(firsts))
    assert firsts[0] == 0
    assert firsts[-1] < 1 << 63
    assert list(islice(emissions(0, 0, 1), 2)) == [firsts[1], firsts[1] + 1]


@pytest.mark.promise("process-topology-024-stages")
def test_more_stages_than_have_numbers_are_refused_by_name() -> None:
    """Their records would stand in another order."""
    assert len(plan(_chain(_LAST_STAGE).build(), 3).stages) == _LAST_STAGE + 1
    with pytest.raises(TopologyError, match="'chain' has 1025 stages, which is more than 1024"):
        plan(_chain(_LAST_STAGE + 1).build(), 3)


@pytest.mark.promise("process-topology-024-stages")
def test_more_tasks_than_have_numbers_are_refused_by_name() -> None:
    """Their records would be taken for those of another stage."""
    topology = _chain(1).build()
    assert plan(topology, _LAST_TASK + 1).stages[0].tasks == _LAST_TASK + 1
    with pytest.raises(TopologyError, match="'b0' would have 4097 tasks, which is more than 4096"):
        plan(topology, _LAST_TASK + 2)

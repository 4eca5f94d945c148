"""Where the partitions of the input end now, as their leaders say."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from sequitur.base.units import format_duration
from sequitur.consumer.reorder.clock import LONGEST_TICK_MS
from sequitur.errors import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.kafka.partition import SourcePartition
    from sequitur.pipelines.ordering.context import JobContext


class InputEnds:
    """Looks at the ends of partitions, and knows whose leaders are silent."""

    def __init__(self, job: JobContext, steady_s: Callable[[], float]) -> None:
        self._job = job
        self._steady_s = steady_s
        self._looked_s = -inf
        self._silent_s: dict[SourcePartition, float] = {}  # since when leaders do not answer

    def is_look_due(self) -> bool:
        """Tell whether the input has not been looked at for as long as a tick may take.

        It goes by a clock that cannot be set: the wall clock may be set back for an hour.
        """
        return self._steady_s() - self._looked_s >= LONGEST_TICK_MS / 1000

    def look(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        """Return where partitions end now, without those whose leaders do not answer.

        A run that reads to an end leaves none out. No partition is left out for longer than
        `patience`.
        """
        wanted = [*partitions]
        ends = self._job.topics.high_watermarks(wanted, of_some=not self._job.is_bounded)
        self._looked_s = now_s = self._steady_s()
        silent = {where: self._silent_s.get(where, now_s) for where in wanted if where not in ends}
        names = ", ".join(f"{topic}/{number}" for topic, number in sorted(silent))
        patience = self._job.settings.patience
        if any(now_s - since_s >= patience.total_seconds() for since_s in silent.values()):
            raise UnansweredError(f"no leader of {names} answers for {format_duration(patience)}")
        if silent.keys() - self._silent_s.keys():
            self._job.outages.tell(
                f"no leader of {names} answers: the job goes on with other partitions, and the "
                "frontier waits for these"
            )
        self._silent_s = silent
        return ends

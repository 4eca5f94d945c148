"""Random histories of source topics: disorder, silence, bad times, repeats of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

PARTITIONS: Final = (0, 1, 2)
_START_MS: Final = 1_000
MAX_FUTURE_SKEW_MS: Final = 500
_BASES_MS: Final = (0, 1_700_000_000_000)
"""Times count from here: those of few digits are read in another way than those of today."""
_BAD_TIMES: Final = (
    "{}",
    '{"at":"soon"}',
    '{"at":-5}',
    '{"at":1000000000}',
    '{"at":9999999999999}',
)
"""Without a time, or with one long before the others, or long after the wall clock."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as it is sent: partition, key, and JSON."""

    partition: int
    key: str | None
    value: str


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One step of the job.

    Attributes:
        sent: The records it reads; none for a tick.
        passed_ms: Wall-clock time since the step before.
        unread: Source partitions whose end it does not reach.
        dies: Whether the job dies in this step, and a new life carries it out.
    """

    sent: tuple[Sent, ...]
    passed_ms: int
    unread: frozenset[int]
    dies: bool


@dataclass(frozen=True, slots=True)
class History:
    """Some steps, and the settings they run under.

    Attributes:
        steps: The steps.
        delay_ms: The delay.
        idle_timeout_ms: After so long without rows a source partition is waited for no more.
        base_ms: The events' times count from here.
    """

    steps: tuple[HistoryStep, ...]
    delay_ms: int
    idle_timeout_ms: int
    base_ms: int

    @property
    def start_ms(self) -> int:
        """The wall clock at the first step."""
        return self.base_ms + _START_MS


def _sent(base_ms: int) -> st.SearchStrategy[Sent]:
    times = st.integers(base_ms, base_ms + 60).map('{{"at":{}}}'.format)
    values = st.one_of(times, times, times, st.sampled_from(_BAD_TIMES))
    return st.builds(
        Sent, st.sampled_from(PARTITIONS), st.sampled_from(["a", "b", "c", None]), values
    )


def histories(
    *, max_steps: int, max_sent: int, min_steps: int = 1, min_sent: int = 0
) -> st.SearchStrategy[History]:

    def of(base_ms: int) -> st.SearchStrategy[History]:
        step = st.builds(
            HistoryStep,
            st.lists(_sent(base_ms), min_size=min_sent, max_size=max_sent).map(tuple),
            st.integers(0, 40),
            st.frozensets(st.sampled_from(PARTITIONS)),
            st.booleans(),
        )
        return st.builds(
            History,
            st.lists(step, min_size=min_steps, max_size=max_steps).map(tuple),
            st.integers(0, 20),
            st.integers(1, 60),
            st.just(base_ms),
        )

    return st.sampled_from(_BASES_MS).flatmap(of)

"""Random histories of source topics: disorder, silence, bad times, repeats of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

PARTITIONS: Final = (0, 1, 2)
START_MS: Final = 1_000
"""The wall clock at the first step."""
MAX_FUTURE_SKEW_MS: Final = 500
_BAD_TIMES: Final = ("{}", '{"at":"soon"}', '{"at":-5}', '{"at":1000000000}')


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
    """Some steps, and the settings they run under."""

    steps: tuple[HistoryStep, ...]
    delay_ms: int
    idle_timeout_ms: int


def _sent() -> st.SearchStrategy[Sent]:
    times = st.integers(0, 60).map('{{"at":{}}}'.format)
    values = st.one_of(times, times, times, st.sampled_from(_BAD_TIMES))
    return st.builds(
        Sent, st.sampled_from(PARTITIONS), st.sampled_from(["a", "b", "c", None]), values
    )


def histories(
    *, max_steps: int, max_sent: int, min_steps: int = 1, min_sent: int = 0
) -> st.SearchStrategy[History]:
    """Histories of so many steps of so many records."""
    step = st.builds(
        HistoryStep,
        st.lists(_sent(), min_size=min_sent, max_size=max_sent).map(tuple),
        st.integers(0, 40),
        st.frozensets(st.sampled_from(PARTITIONS)),
        st.booleans(),
    )
    return st.builds(
        History,
        st.lists(step, min_size=min_steps, max_size=max_steps).map(tuple),
        st.integers(0, 20),
        st.integers(1, 60),
    )

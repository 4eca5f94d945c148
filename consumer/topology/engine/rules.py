"""The rules of an executor, and which tasks it runs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.consumer.topology.api.stable_hash import HASH_VERSION
from sequitur.consumer.topology.settling.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.kafka.record_limit import RecordLimit

_IDS_AT_ONCE: Final = 1 << 12


class Ordering(StrEnum):
    """Which events a failed event holds back."""

    KEY = "key"
    """Later events of its key."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an executor.

    Attributes:
        call_timeout_s: A call that takes longer fails.
        ordering: Which events a failed event holds back.
        retry: When a failed event is tried again; one that is given up holds back no other.
        max_spout_pending: Open trees, at most: then the batch is finished first. None: no bound.
        hash_version: Of the hash by which values choose tasks.
        limits: Largest record of the topics of outputs, by output; of others, a broker's default.
    """

    call_timeout_s: float = 30.0
    ordering: Ordering = Ordering.KEY
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_spout_pending: int | None = None
    hash_version: int = HASH_VERSION
    limits: Mapping[str, RecordLimit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """The tasks that run in this process.

    Attributes:
        tasks: How many tasks each component has.
        here: The numbers of those that run here, of each component with any.
        number: Number of this process among those with the same components.
    """

    tasks: Mapping[str, int]
    here: Mapping[str, Sequence[int]]
    number: int = 0


def random_ids(seed: Any) -> Callable[[], int]:
    """Return a function that draws 64-bit random numbers; never 0, which would be no edge.

    Args:
        seed: Of `numpy.random.default_rng`.
    """
    random = np.random.default_rng(seed)

    def drawn() -> list[int]:
        ids: list[int] = random.integers(1, 1 << 64, _IDS_AT_ONCE, dtype=np.uint64).tolist()
        return ids

    return itertools.chain.from_iterable(iter(drawn, None)).__next__

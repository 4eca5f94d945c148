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

    from sequitur.kafka.record_format import RecordLimit

_IDS_AT_ONCE: Final = 1 << 12


class Ordering(StrEnum):
    """Which events a failed event holds back."""

    KEY = "key"
    """Later events of its key."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an executor."""

    call_timeout_s: float = 30.0  # a call that takes longer fails
    ordering: Ordering = Ordering.KEY  # which events a failed event holds back
    # when a failed event is tried again; one that is given up holds back no other
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    # open trees, at most: then the batch is finished first. None: no bound
    max_spout_pending: int | None = None
    hash_version: int = HASH_VERSION  # of the hash by which values choose tasks
    # largest record of the topics of outputs, by output; of others, a broker's default
    limits: Mapping[str, RecordLimit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """The tasks that run in this process."""

    tasks: Mapping[str, int]  # how many tasks each component has
    # the numbers of those that run here, of each component with any
    here: Mapping[str, Sequence[int]]
    number: int = 0  # number of this process among those with the same components


def random_ids(seed: Any) -> Callable[[], int]:
    """Return a function that draws 64-bit random numbers; never 0, which would be no edge."""
    random = np.random.default_rng(seed)

    def drawn() -> list[int]:
        ids: list[int] = random.integers(1, 1 << 64, _IDS_AT_ONCE, dtype=np.uint64).tolist()
        return ids

    return itertools.chain.from_iterable(iter(drawn, None)).__next__

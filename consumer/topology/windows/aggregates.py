"""What a window computes of its events: counts, sums, means, quantiles, and your own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology.windows import exact_sum
from sequitur.consumer.topology.windows.event_values import everything
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.consumer.topology.windows.event_values import Of


class Aggregate(ABC):
    """Computes one value of a window's events. Derive from it to compute your own.

    A state is None, bool, int of 64 bits, float, text, bytes, or lists and mappings of these. A
    tuple is kept as a list. `add` and `merge` may change `state` in place. ::

        class Spread(Aggregate):
            def begin(self):
                return None

            def add(self, state, value):
                low, high = state or (value, value)
                return min(low, value), max(high, value)

            def merge(self, state, other):
                return self.add(self.add(state, other[0]), other[1]) if other else state

            def result(self, state):
                return state and state[1] - state[0]

    Args:
        of: What it is of. An event of which this is missing or None is left out.
    """

    def __init__(self, of: Of = None) -> None:
        self.of = of

    @abstractmethod
    def begin(self) -> Any:
        """Return the state of a window without events."""

    @abstractmethod
    def add(self, state: Any, value: Any) -> Any:
        """Return the state with one more value. Values come in event-time order."""

    @abstractmethod
    def merge(self, state: Any, other: Any) -> Any:
        """Return the state of all values of two states, those of `other` being the later ones."""

    def result(self, state: Any) -> Any:
        """Return what the window emits. By default it is the state."""
        return state

    def of_all(self, values: Sequence[Any]) -> Any:
        """Return the result of several values; None among them is left out."""
        state = self.begin()
        for value in values:
            if value is not None:
                state = self.add(state, value)
        return self.result(state)


class Count(Aggregate):
    """How many events there are, or how many have something.

    Args:
        of: What they have, see `Aggregate`. Without it all events count.
    """

    def __init__(self, of: Of = None) -> None:
        super().__init__(everything if of is None else of)

    def begin(self) -> int:
        return 0

    def add(self, state: int, value: Any) -> int:
        del value
        return state + 1

    def merge(self, state: int, other: int) -> int:
        return state + other


class Sum(Aggregate):
    """The sum of numbers: the exact one, rounded once. Neither order nor retries change a digit.

    An event fails if its value is not a finite number, or larger than 1e290.
    """

    def begin(self) -> exact_sum.ExactSum:
        return exact_sum.empty()

    def add(self, state: exact_sum.ExactSum, value: Any) -> exact_sum.ExactSum:
        exact_sum.add(state, value)
        return state

    def merge(self, state: exact_sum.ExactSum, other: exact_sum.ExactSum) -> exact_sum.ExactSum:
        exact_sum.merge(state, other)
        return state

    def result(self, state: exact_sum.ExactSum) -> float:
        return exact_sum.rounded(state)


class Mean(Aggregate):
    """The mean of numbers, rounded once, see `Sum`. It is None without any."""

    def begin(self) -> list[Any]:
        return [0, exact_sum.empty()]

    def add(self, state: list[Any], value: Any) -> list[Any]:
        exact_sum.add(state[1], value)
        state[0] += 1
        return state

    def merge(self, state: list[Any], other: list[Any]) -> list[Any]:
        exact_sum.merge(state[1], other[1])
        state[0] += other[0]
        return state

    def result(self, state: list[Any]) -> float | None:
        return exact_sum.mean(state[1], state[0])


class Min(Aggregate):
    """The smallest value, and the first of equal ones. It is None without any.

    An event whose value is NaN fails.
    """

    def begin(self) -> None:
        return None

    def add(self, state: Any, value: Any) -> Any:
        if state is None or value < state:
            return _comparable(value)
        return state if value >= state else _comparable(value)

    def merge(self, state: Any, other: Any) -> Any:
        return state if other is None else self.add(state, other)


class Max(Aggregate):
    """The largest value, and the first of equal ones. It is None without any.

    An event whose value is NaN fails.
    """

    def begin(self) -> None:
        return None

    def add(self, state: Any, value: Any) -> Any:
        if state is None or value > state:
            return _comparable(value)
        return state if value <= state else _comparable(value)

    def merge(self, state: Any, other: Any) -> Any:
        return state if other is None else self.add(state, other)


class Quantiles(Aggregate):
    """A list of quantiles of numbers, within a relative error. Without numbers they are None.

    It counts numbers in buckets, each of which is by a factor wider than the one before (DDSketch:
    Masson, Rim and Lee, 2019). The number at rank `floor(q * (n - 1))` is at most `error` times
    itself away from the result. A window keeps some 4 bytes for each bucket that has numbers. With
    `error = 0.01` there are at most 116 buckets for each power of ten.

    Args:
        of: What it is of.
        quantiles: From 0 to 1.
        error: The relative error.

    Raises:
        TopologyBuildError: A quantile or the error is out of its range.
    """

    def __init__(self, of: Of = None, *quantiles: float, error: float = 0.01) -> None:
        super().__init__(of)
        if not quantiles or not all(0 <= one <= 1 for one in quantiles):
            raise TopologyBuildError(f"Quantiles({of!r}, {quantiles}): give some, each from 0 to 1")
        if not 0 < error < 1:
            raise TopologyBuildError(f"Quantiles({of!r}): error = {error}: expected 0 < error < 1")
        self.quantiles = quantiles
        self.error = error
        self._growth = (1 + error) / (1 - error)
        self._scale = 1 / math.log(self._growth)

    def begin(self) -> list[Any]:
        return [0, {}, {}]  # count of zeros; counts of positive and of negative numbers by bucket

    def add(self, state: list[Any], value: Any) -> list[Any]:
        size = abs(value)
        if not size <= exact_sum.LARGEST:
            raise ValueError(f"{value!r} is not a number of at most {exact_sum.LARGEST}")
        if size < _SMALLEST:
            state[0] += 1
            return state
        buckets = state[1 if value > 0 else 2]
        bucket = math.ceil(math.log(size) * self._scale)
        buckets[bucket] = buckets.get(bucket, 0) + 1
        return state

    def merge(self, state: list[Any], other: list[Any]) -> list[Any]:
        state[0] += other[0]
        for mine, theirs in zip(state[1:], other[1:], strict=True):
            for bucket, count in theirs.items():
                mine[bucket] = mine.get(bucket, 0) + count
        return state

    def result(self, state: list[Any]) -> list[float | None]:
        zeros, positive, negative = state
        rising = [(-self._middle(one), negative[one]) for one in sorted(negative, reverse=True)]
        rising.append((0.0, zeros))
        rising += [(self._middle(one), positive[one]) for one in sorted(positive)]
        total = sum(count for _, count in rising)
        return [self._at(rising, math.floor(one * (total - 1))) for one in self.quantiles]

    def _middle(self, bucket: int) -> float:
        """Return the number that is as far, relatively, from both bounds of a bucket."""
        return 2 * self._growth**bucket / (self._growth + 1)

    @staticmethod
    def _at(rising: list[tuple[float, int]], rank: int) -> float | None:
        for number, count in rising:
            rank -= count
            if count and rank < 0:
                return number
        return None


class Collect(Aggregate):
    """All values, as a list in event-time order. A key keeps at most 1 MiB."""

    def begin(self) -> list[Any]:
        return []

    def add(self, state: list[Any], value: Any) -> list[Any]:
        state.append(value)
        return state

    def merge(self, state: list[Any], other: list[Any]) -> list[Any]:
        return state + other


class Reduce(Aggregate):
    """Values put together two by two by a function. It is None without any.

    Args:
        function: Takes two values and returns one: `(a, b), c` and `a, (b, c)` must give the same.
        of: What it is of.
    """

    def __init__(self, function: Callable[[Any, Any], Any], of: Of = None) -> None:
        super().__init__(of)
        self.function = function

    def begin(self) -> None:
        return None

    def add(self, state: Any, value: Any) -> Any:
        return value if state is None else self.function(state, value)

    def merge(self, state: Any, other: Any) -> Any:
        return state if other is None else self.add(state, other)


class Top(Aggregate):
    """The largest values, as a list from the largest down. Of equal ones the first stays.

    Args:
        n: How many.
        of: What it is of: numbers or text. By a function they can be lists, which are compared.

    Raises:
        TopologyBuildError: It is less than 1.
    """

    def __init__(self, n: int, of: Of = None) -> None:
        super().__init__(of)
        if n < 1:
            raise TopologyBuildError(f"Top({n}): expected 1 or more")
        self.n = n

    def begin(self) -> list[Any]:
        return []

    def add(self, state: list[Any], value: Any) -> list[Any]:
        return self.merge(state, [_comparable(value)])

    def merge(self, state: list[Any], other: list[Any]) -> list[Any]:
        return list(merge(state, other, reverse=True))[: self.n]


_SMALLEST: Final = 1e-290
"""Numbers below it count as 0."""


def _comparable(value: Any) -> Any:
    if value != value:  # noqa: PLR0124 - NaN
        raise ValueError("NaN cannot be compared with other values")
    return value

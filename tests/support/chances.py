"""Bolts whose calls fail by chance or by plan, and topologies of them that count each value."""

from __future__ import annotations

import random
import threading
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    BasicBolt,
    TransactionalTopologyBuilder,
)
from sequitur.consumer.topology.state import TransactionalState
from tests.support.transactions import Journal, text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sequitur.consumer.topology import BasicOutputCollector, TransactionalTopology, Tuple
    from sequitur.consumer.topology.state import SQLStore

ATTEMPTS: Final = 9
"""So many that no event is unlucky in all of its own."""


class Chances(Journal):
    """Counts calls, fails some, draws tokens, and lets the process die in one.

    Args:
        failing: The bolts whose calls fail.
        share: Of their calls, by chance.
        values: They fail in the first attempt at these.
        seed: Which of them fail by chance.
    """

    def __init__(
        self,
        failing: Collection[str],
        share: float = 0.0,
        values: Collection[str] = (),
        *,
        seed: int = 3,
    ) -> None:
        super().__init__()
        self.made: Counter[str] = Counter()
        self.of_value: Counter[tuple[str, str]] = Counter()
        self.failed = self.beside = 0
        self.mixed: list[str] = []
        self.totals: list[int] = []
        self.dies_in: int | None = None
        self.is_committing = False
        self._failing, self._below, self._values = failing, share * 2**32, values
        self._seed, self._random = seed, random.Random(seed)
        self._lock = threading.Lock()

    def call(self, component: str, given: Tuple) -> None:
        value = text(given["value"])
        with self._lock:
            self.beside += threading.current_thread() is not threading.main_thread()
            self.made[component] += 1
            self.of_value[component, value] += 1
            if self.dies_in is not None and not self.is_committing:
                self.dies_in -= 1
                if not self.dies_in:
                    raise KeyboardInterrupt
            is_planned = given.attempt == 1 and value in self._values
            if component in self._failing and (
                is_planned or self._fails(component, value, self.of_value[component, value])
            ):
                self.failed += 1
                raise ConnectionError("503")

    def _fails(self, component: str, value: str, call: int) -> bool:
        drawn = blake2b(f"{self._seed} {component} {value} {call}".encode(), digest_size=4)
        return int.from_bytes(drawn.digest(), "big") < self._below

    def passes_at_once(self, value: str) -> bool:
        """Return whether a plain topology acks an event in its first batch."""
        return not any(self._fails(component, value, 1) for component in self._failing)

    def token(self, given: Tuple) -> float:
        """Return what an event's first bolt has drawn for it: in each run it is another."""
        token: float = self._random.random() if given.source == "spout" else given["token"]
        return token


class Ask(BasicBolt):
    """Passes on what it is given."""

    fields = ("transaction", "value", "token")

    def __init__(self, chances: Chances, name: str = "ask") -> None:
        self.chances = chances
        self.name = name

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        self.chances.call(self.name, tuple)
        collector.emit((tuple["transaction"], tuple["value"], self.chances.token(tuple)))


class Total(Ask):
    """Keeps how many values there were in all batches; what then fails leaves them counted."""

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.count = 0

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        self.count += 1
        super().process(tuple, collector)

    def snapshot(self) -> int:
        self.chances.totals.append(self.count)
        return self.count

    def restore(self, snapshot: int) -> None:
        self.count = snapshot


class Part(BaseTransactionalBolt):
    """Gathers the tuples of a batch, also one that then fails; refuses a batch that has such.

    Args:
        chances: Fails calls.
        name: Its name.
        is_locked: Whether it cannot be copied.
        size: How many bytes it has from the beginning.
    """

    fields: Sequence[str] = ("transaction", "value", "token")

    def __init__(
        self, chances: Chances, name: str = "part", *, is_locked: bool = False, size: int = 0
    ) -> None:
        self.chances = chances
        self.name = name
        self.is_locked = is_locked
        self.kept = "x" * size
        self.given: list[tuple[Tuple, float]] = []
        self.open = 0

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.lock = threading.Lock() if self.is_locked else None

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self.open += 1
        self.given.append((tuple, self.chances.token(tuple)))
        self.chances.call(self.name, tuple)
        self.open -= 1

    def finish_batch(self) -> None:
        if self.open:
            raise ValueError(f"{self.open} are in it that failed")
        for one, token in self.given:
            self.collector.emit((self.transaction, one["value"], token))


class Passing(Part):
    """Emits at once."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        super().process(tuple)
        given, token = self.given.pop()
        self.collector.emit((self.transaction, given["value"], token))


class Sum(Part):
    """Counts all values by where they come from; those of an event have one token."""

    def finish_batch(self) -> None:
        """Write the counts, and emit the values."""
        self.chances.is_committing = True
        found = Counter(f"{one.source} {text(one['value'])}" for one, _ in self.given)
        state = self.context.state("count")
        state.multi_update(list(found), lambda key, count: (count or 0) + found[str(key)])
        tokens = dict.fromkeys((text(one["value"]), token) for one, token in self.given)
        times = Counter(value for value, _ in tokens)
        self.chances.mixed += [value for value in times if times[value] > 1]
        for value, token in tokens:
            self.collector.emit((self.transaction, value, token))


def topology_of(
    chances: Chances,
    store: SQLStore,
    bolts: Mapping[str, tuple[Any, Sequence[str]]],
    *,
    is_shuffled: bool = False,
    concurrency: int = 1,
) -> TransactionalTopology:
    """Return a topology, whose committer is `sum`; the last of its bolts is written.

    Args:
        chances: Fails the calls.
        store: Where the values are counted, in the table `counts`.
        bolts: By name, what each is, or its class, and reads.
        is_shuffled: Whether each bolt has two or three tasks elsewhere, or is where its input is.
        concurrency: That of `ask`.
    """
    states = {"count": TransactionalState(store, "counts")}
    builder = TransactionalTopologyBuilder("calls", "spout")
    for number, (name, (kind, sources)) in enumerate(bolts.items()):
        made = kind(chances, name) if isinstance(kind, type) else kind
        if name == "sum":
            declared = builder.set_committer_bolt(name, made, states=states)
        else:
            calls = concurrency if name == "ask" else 1
            tasks = 2 + number % 2 if is_shuffled else None
            declared = builder.set_bolt(name, made, tasks, concurrency=calls)
        for source in sources:
            if name == "sum":
                declared.global_grouping(source)
            elif is_shuffled:
                declared.shuffle_grouping(source)
            else:
                declared.local_grouping(source)
    builder.set_output("out", key=None, value="value").local_grouping(list(bolts)[-1])
    return builder.build()

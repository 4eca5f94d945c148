"""The hash by which values choose tasks: alike for equal values, in each process and version."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import math
import os
import subprocess
import sys
import uuid
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.topology import TopologyBuilder, TopologyTester, stable_hash
from sequitur.consumer.topology.api.tuple import EventValues
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.plan import Placement, Rules
from sequitur.consumer.topology.settling.root import Root
from sequitur.errors import UngroupableValueError

_CET = dt.timezone(dt.timedelta(hours=1))


class Colour(enum.IntEnum):
    """Numbers with names."""

    RED = 1


class Unit(enum.Enum):
    """Names with values that nobody compares."""

    METRE = object()


@dataclass(frozen=True)
class Place:
    """Compared by its name."""

    name: str
    seen: int = field(default=0, compare=False)


EQUAL: list[tuple[Any, ...]] = [
    (1, 1.0, True, decimal.Decimal(1), decimal.Decimal("1.00"), fractions.Fraction(1), 1 + 0j,
     np.int64(1), np.uint8(1), np.float32(1), np.float64(1), np.bool_(True), np.longdouble(1),
     np.complex64(1), Colour.RED),
    (0.5, np.float64(0.5), np.float32(0.5), np.longdouble(0.5), decimal.Decimal("0.50"),
     fractions.Fraction(1, 2)),
    (decimal.Decimal("0.1"), fractions.Fraction(1, 10), decimal.Decimal("0.10")),
    (0, -0.0, decimal.Decimal("-0"), False),
    (2**70, float(2**70), decimal.Decimal(2**70)),
    (2**60 + 1, decimal.Decimal(2**60 + 1), fractions.Fraction(2**60 + 1),
     decimal.Decimal(2**60 + 1) + decimal.Decimal("0.0")),
    (-10**400, decimal.Decimal("-1E400"), fractions.Fraction(-10**400)),
    (math.inf, decimal.Decimal("inf"), np.float32(math.inf)),
    (b"a", bytearray(b"a"), memoryview(b"a"), np.bytes_(b"a")),
    ("ä", np.str_("ä")),
    (dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 13, tzinfo=_CET)),
    (dt.datetime(2026, 1, 1), np.datetime64("2026-01-01T00:00")),  # noqa: DTZ001
    (dt.time(12, tzinfo=dt.UTC), dt.time(13, tzinfo=_CET)),
    (dt.timedelta(seconds=60), dt.timedelta(minutes=1), np.timedelta64(1, "m")),
    ({"a": 1, "b": 2}, {"b": 2.0, "a": True}, OrderedDict(b=2, a=1)),
    (frozenset("abc"), frozenset("cba"), {"b", "a", "c"}, {"a": 0, "b": 0, "c": 0}.keys()),
    (uuid.UUID(int=7), uuid.UUID(int=7)),
    (Place("a", 1), Place("a", 2)),
    ((1, "a"), (1.0, "a"), (True, np.str_("a"))),
    (Unit.METRE, Unit.METRE),
]  # fmt: skip


@pytest.mark.promise("process-grouping-given-value")
@pytest.mark.parametrize("values", EQUAL)
def test_equal_values_have_equal_hashes(values: tuple[Any, ...]) -> None:
    assert all(one == values[0] for one in values)
    assert len({stable_hash(one) for one in values}) == 1
    assert len({stable_hash([{"in": (one,)}]) for one in values}) == 1


@given(
    st.one_of(
        st.integers(), st.floats(allow_nan=False), st.fractions(), st.decimals(allow_nan=False)
    )
)
def test_numbers_hash_as_all_numbers_that_equal_them(number: Any) -> None:
    hashed = stable_hash(number)
    kinds: list[Any] = [int, float, decimal.Decimal, fractions.Fraction, np.float32, np.longdouble]
    for kind in kinds:
        try:
            with np.errstate(over="ignore"):
                other = kind(number)
            # NumPy rounds the other side, too, before it compares.
            exact = fractions.Fraction(*other.as_integer_ratio())
        except (TypeError, ValueError, OverflowError, decimal.InvalidOperation):
            continue
        if exact == number:
            assert stable_hash(other) == hashed


@pytest.mark.parametrize("grouping", ["fields_grouping", "partial_key_grouping"])
def test_groupings_choose_by_the_hash(grouping: str) -> None:
    builder = TopologyBuilder("groups")
    builder.set_spout("events")
    getattr(builder.set_bolt("take", take, 64), grouping)("events", "value")
    topology = builder.build()
    sent: list[int] = []
    value = decimal.Decimal("1.10")
    executor = Executor(
        topology,
        Placement({"events": 1, "take": 64}, {"events": (0,)}),
        Rules(),
        clock=float,
        next_id=lambda: 1,
        write=lambda *_: None,
        send=lambda _component, task, _sent: sent.append(task),
    )
    values = EventValues(b"k", value, (), 0, "t", 0, 0, 0)  # type: ignore[arg-type]
    executor.feed(Root(1, values), values)
    key = value if grouping == "fields_grouping" else [value]
    assert sent == [stable_hash(key) % 64]


def test_a_number_of_a_million_digits_takes_no_million_digits() -> None:
    assert stable_hash(decimal.Decimal("1E+999999")) == 0
    assert stable_hash(decimal.Decimal("1E-999999")) != stable_hash(0)


@pytest.mark.parametrize("value", [math.nan, decimal.Decimal("nan"), decimal.Decimal("snan")])
def test_no_number_has_a_hash_of_its_own(value: Any) -> None:
    """It equals nothing, and its events have to go somewhere."""
    assert stable_hash(value) == stable_hash(math.nan)


@pytest.mark.promise("process-grouping-given-value")
@pytest.mark.parametrize(
    ("value", "hashed"),
    [
        ("word", 3287381265),
        ("w\u00f6rt", 1654302425),
        (b"\x00\xff", 1826356594),
        (7, 1401181202),
        (-1, 1640531526),
        (2**70, 0),
        (1.5, 2270993338),
        (-0.0, 0),
        (math.inf, 3890785273),
        (None, 2029700232),
        (["a", 1, [2.5, None]], 6489558589339935847),
        (("x", b"y"), 15859791054748998117),
        (True, 2654435769),
    ],
)
def test_a_value_keeps_its_hash(value: Any, hashed: int) -> None:
    """Tasks hold the state of the keys that the hash sent them."""
    assert stable_hash(value) == hashed


class Unknown:
    """A type of the user's."""

    def __repr__(self) -> str:
        return "<Unknown thing>"


@pytest.mark.parametrize("value", [Unknown(), [Unknown()], {"a": Unknown()}, object])
def test_a_value_of_an_unknown_type_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UngroupableValueError, match=r"is of type \S+, which Sequitur cannot"):
        stable_hash(value)


def emit_unknown(event: Any) -> Any:
    """Emit a value that no grouping can hash, for one event."""
    yield (Unknown() if event.value == b"bad" else "good",)


def take(given: Any) -> None:
    del given


@pytest.mark.promise("process-grouping-given-value")
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("parallelism", [1, 4])
def test_a_topology_that_groups_by_an_unknown_type_ends_by_name(
    parallelism: int, concurrency: int
) -> None:
    """It is no fault of the event, which is no dead letter."""
    builder = TopologyBuilder("groups")
    builder.set_spout("events")
    builder.set_bolt("emit", emit_unknown, concurrency=concurrency).local_grouping("events")
    builder.set_bolt("take", take, parallelism).fields_grouping("emit", "value")
    ran = TopologyTester(builder.build())
    ran.run([("a", "good")])
    with pytest.raises(
        UngroupableValueError,
        match=r"bolt .emit.: tuples cannot be grouped by a value: .*<Unknown thing>",
    ):
        ran.run([("a", "bad")])


def test_a_hash_is_the_same_in_each_process() -> None:
    """Python's own is not; tasks would send a word to different places."""
    values = ["word", b"word", 7, 1.5, ("a", 1), None, 2**70, float("inf")]
    program = (
        "from sequitur.consumer.topology import stable_hash; inf = float('inf'); "
        f"print([stable_hash(value) for value in {values!r}])"
    )
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        assert out.strip() == str([stable_hash(value) for value in values])


def test_hashes_of_numbers_on_end_are_spread() -> None:
    """Tasks get about as many each."""
    counts = Counter(stable_hash(number) % 8 for number in range(8_000))
    assert min(counts.values()) > 800

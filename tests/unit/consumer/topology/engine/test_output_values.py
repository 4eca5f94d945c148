"""What outputs make of values: bytes, text and JSON; what JSON cannot hold is refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from collections import Counter
from typing import Any

import pytest

from sequitur.consumer.topology import (
    TopologyBuilder,
    TopologyBuildError,
    TopologyTester,
)


@dataclasses.dataclass
class Reading:
    """A value of the user's own type."""

    sensor: str
    value: Any


VALUES: list[Any] = [
    math.nan, -math.inf, {"value": math.nan}, [1, [math.inf]], Reading("a", math.nan),
    {"raw": b"bob"}, [bytearray(b"bob")], (memoryview(b"bob"),), Reading("a", b"bob"), {b"key": 1},
    {"plain": [1, 2.5, "x", None, True], "at": dt.date(2026, 1, 1)}, Counter("aab"),
    Reading("a", 1.5),
]  # fmt: skip
REFUSED = 10
"""Of these the first ones."""


def emit(event: Any) -> Any:
    yield (VALUES[int(event.value)],)


def as_repr(value: Any) -> str:
    return repr(value)


def as_number(_value: Any) -> Any:
    """An encoder that makes neither bytes nor text."""
    return 1


def run_by(**output: Any) -> TopologyTester:
    builder = TopologyBuilder("values")
    builder.set_spout("events")
    builder.set_bolt("emit", emit).local_grouping("events")
    builder.set_output("out", key=None, **output).local_grouping("emit")
    return TopologyTester(builder.build())


def why_dead(ran: TopologyTester) -> str:
    ran.retry_all()
    (letter,) = ran.dead_letters
    return letter.detail


@pytest.mark.parametrize("number", range(REFUSED))
def test_what_json_would_turn_into_something_else_is_refused_by_name(number: int) -> None:
    """NaN would be null, and bytes a string."""
    ran = run_by(value="value")
    ran.run([("key", str(number))])
    assert ran.records("out") == []
    detail = why_dead(ran)
    assert "output 'out': JSON has no form for" in detail
    assert "in value" in detail


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (10, {"plain": [1, 2.5, "x", None, True], "at": "2026-01-01"}),
        (11, {"a": 2, "b": 1}),
        (12, {"sensor": "a", "value": 1.5}),
    ],
)
def test_what_json_can_hold_goes_out(number: int, expected: Any) -> None:
    """Types of the user's own and of the standard library, too."""
    ran = run_by(value="value")
    ran.run([("key", str(number))])
    ((_, value),) = ran.records("out")
    assert json.loads(value or b"") == expected


def test_an_encoder_of_the_outputs_own_takes_what_json_refuses() -> None:
    ran = run_by(value="value", encode=as_repr)
    ran.run([("key", "0"), ("key", "5")])
    assert [value for _, value in ran.records("out")] == [b"nan", b"{'raw': b'bob'}"]


def test_an_encoder_that_makes_no_bytes_is_named() -> None:
    ran = run_by(value="value", encode=as_number)
    ran.run([("key", "0")])
    assert "output 'out': its encode made 1 of value nan" in why_dead(ran)


def test_an_encoder_that_cannot_be_sent_to_tasks_is_refused() -> None:
    with pytest.raises(TopologyBuildError, match="output 'out' cannot be pickled"):
        run_by(value="value", encode=lambda value: value)

"""Positions and times, as commands are given them."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sequitur.consumer.subscription.cursor import LARGEST_OFFSET
from sequitur.consumer.subscription.position import (
    Position,
    parse_ago_ms,
    parse_time_ms,
    places_of,
)
from sequitur.errors import PolicyError, PositionFormatError, PositionRangeError
from sequitur.kafka.partition import SourcePartition

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOW_MS = 1_763_900_000_000
_FULL = "TOPIC:PARTITION:OFFSET$"
_TIMES = (
    r"milliseconds since 1970"
    r"(, such as \d+. Seconds, and dates without hyphens, are not accepted)?$"
)
_TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=20)


@given(st.integers(0, 1 << 31), st.integers(0, LARGEST_OFFSET), st.none() | _TOPICS)
@example(0, LARGEST_OFFSET, None)
def test_positions_are_read_as_they_are_printed(
    partition: int, offset: int, topic: str | None
) -> None:
    position = Position(partition, offset, topic)
    assert Position.parse(str(position)) == position
    assert str(position) == f"{'' if topic is None else topic + ':'}{partition}:{offset}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "0:",
        ":7",
        "0:-1",
        "-1:0",
        "a:b",
        "a b:0:7",
        "0:7:x",
        f"0:{1 << 63}",
        "0:\N{ARABIC-INDIC DIGIT SEVEN}",
        "a:b:0:7",
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(PositionFormatError, match=re.escape(repr(text)) + f".*0:17, or {_FULL}"):
        Position.parse(text)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1763900000000", 1_763_900_000_000),
        ("100000000000", 100_000_000_000),
        ("253402300799999", 253_402_300_799_999),
        ("2025-11-23T12:13:20Z", 1_763_900_000_000),
        ("2025-11-23T13:13:20+01:00", 1_763_900_000_000),
        (" 2025-11-23 12:13:20.5 ", 1_763_900_000_500),
        ("2025-11-23", 1_763_856_000_000),
    ],
)
def test_times_are_read(text: str, time_ms: int) -> None:
    """Milliseconds, or ISO 8601; without a zone it is UTC."""
    assert parse_time_ms(text) == time_ms


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's own time is nine hours ahead of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_a_time_without_a_zone_is_utc_on_any_machine() -> None:
    """Else a reset would skip nine hours of messages, or read them again."""
    assert parse_time_ms("2025-11-23T12:13:20") == 1_763_900_000_000
    assert parse_time_ms("2025-11-23T12:13:20Z") == 1_763_900_000_000


@pytest.mark.parametrize("text", ["1763900000", "20251123", "0", "9" * 16, "-5", "yesterday", ""])
def test_times_that_could_be_meant_otherwise_are_refused(text: str) -> None:
    """Seconds since 1970 read as milliseconds would reset to the first message."""
    with pytest.raises(PositionFormatError, match=_TIMES):
        parse_time_ms(text)


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [("24h", 86_400), ("4h", 14_400), ("3d", 259_200), ("2w", 1_209_600), ("90", 90), ("0s", 0)],
)
def test_times_ago_are_read_as_pulsar_has_them(text: str, ago_s: int) -> None:
    assert parse_ago_ms(text, now_ms=_NOW_MS) == _NOW_MS - ago_s * 1000


def test_a_time_ago_is_not_before_1970_nor_in_the_future() -> None:
    assert parse_ago_ms("100y", now_ms=_NOW_MS) == 0
    with pytest.raises(PositionFormatError, match="in the past"):
        parse_ago_ms("-1", now_ms=_NOW_MS)
    with pytest.raises(PolicyError):
        parse_ago_ms("soon", now_ms=_NOW_MS)


def test_positions_name_partitions_that_are_there() -> None:
    """Each at most once; the topic may be left out where there is one."""
    here = {SourcePartition("orders", 0), SourcePartition("orders", 1)}
    found = places_of([Position(0, 7), Position(1, 9, "orders")], ["orders"], here)
    assert found == {SourcePartition("orders", 0): 7, SourcePartition("orders", 1): 9}
    for positions, topics, why in (
        ([Position(2, 7)], ["orders"], "no such partition"),
        ([Position(0, 7), Position(0, 8)], ["orders"], "named twice"),
        ([Position(0, 7)], ["orders", "bills"], f"on 2 topics, so write {_FULL}"),
        ([Position(0, 7, "bills")], ["orders"], "not on that topic"),
    ):
        with pytest.raises(PositionRangeError, match=why):
            places_of(positions, topics, here)

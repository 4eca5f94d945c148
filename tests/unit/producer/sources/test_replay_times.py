"""A replay reads the times of events as the reorder job does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sequitur.base.time_format import MILLISECONDS, iso_ms
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.event_time import read_event_time
from sequitur.errors import EventTimeSpecError, KeySpecError
from sequitur.producer.sources._replay_schedule import NO_TIME
from sequitur.producer.sources.replay import recorded_time_ms, time_of
from tests.support.event_time_cases import FORMAT_CASES, TEXT_CASES


def _agrees(setting: str, value: object) -> None:
    line = json.dumps({"at": value}).encode()
    expected = read_event_time(parse_event_time_spec(setting), value=line).ms
    found = recorded_time_ms(line, *time_of(setting))
    # What is before 1970 is no event time for the job; a replay takes the pauses between such.
    assert expected in {None, found}
    if expected is None:
        assert found < 0


@pytest.mark.promise("times-one-reader")
@pytest.mark.parametrize("text", [text for text, _ in TEXT_CASES])
@pytest.mark.parametrize("unit", ["ms", "s", "us", "ns", "auto"])
def test_times_are_read_alike(text: str, unit: str) -> None:
    _agrees(f"json:at as {unit}", text)


@pytest.mark.promise("times-one-reader")
@pytest.mark.parametrize(("written", "text"), [case[:2] for case in FORMAT_CASES])
def test_formats_are_read_alike(written: str, text: str) -> None:
    _agrees(f"json:at as {written}", text)


@pytest.mark.parametrize("value", [1_700_000_000_123, 1.7e9, -5, True, None, [1], {"at": 1}, 1e300])
def test_other_values_are_read_alike(value: object) -> None:
    _agrees("json:at", value)


_ZONES = st.integers(-18 * 60, 18 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_MOMENTS = st.datetimes(timezones=st.none() | _ZONES)


@pytest.mark.promise("times-one-reader")
@given(_MOMENTS, st.sampled_from(["T", "t", " "]), st.sampled_from([".", ","]), st.booleans())
@example(datetime(2026, 12, 31, 23, 59, 59, 999_999, UTC), "T", ",", True)
def test_what_programs_print_is_read(
    moment: datetime, between: str, point: str, basic: bool
) -> None:
    """Any moment, in the extended form or the basic one, as Python knows it."""
    text = moment.isoformat(between).replace(".", point)
    if basic:
        date, time = text.split(between)
        zone = time[-6:] if moment.tzinfo is not None else ""
        time = time.removesuffix(zone)
        text = date.replace("-", "") + between + time.replace(":", "") + zone.replace(":", "")
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    assert iso_ms(text) == since // timedelta(milliseconds=1)
    year, week, day = moment.isocalendar()
    clock = text[text.index(between) :]
    for date in (
        f"{year:04}-W{week:02}-{day}",
        f"{moment.year:04}-{moment.timetuple().tm_yday:03}",
    ):
        assert iso_ms(date + clock) == iso_ms(text)


@given(st.text(st.sampled_from("0123456789-:.,+TtZzWw "), max_size=30))
@example("2023-11-14T24:00:00." + "0" * 5_000)
def test_no_text_is_too_odd_to_be_read_or_not(text: str) -> None:
    """Nothing is raised, and digits alone are a number."""
    found = MILLISECONDS.read(text)
    if text.strip().isdigit():
        assert found == min(int(text), 2**63 - 1)
    assert found is None or isinstance(found, int)


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("json:at as sec", EventTimeSpecError),
        ("json:", KeySpecError),
        ("header:at", KeySpecError),
        ("kafka-timestamp", KeySpecError),
    ],
)
def test_other_settings_are_refused(setting: str, error: type[Exception]) -> None:
    """A recording has lines, and nothing else."""
    with pytest.raises(error):
        time_of(setting)


def test_no_time_is_none_that_can_be_read() -> None:
    assert recorded_time_ms(b'{"at":"soon"}', *time_of("json:at")) == NO_TIME
    assert recorded_time_ms(b"no json", *time_of("json:at")) == NO_TIME

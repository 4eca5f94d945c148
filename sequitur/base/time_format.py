"""What a text says about when: a number in a unit, an ISO 8601 time, or a form of the user's own.

A number has the unit that the setting names, fractions floored: `1700000000123`, `1.7e12`. With
`auto` its size tells: below 10^11 seconds, below 10^14 milliseconds, below 10^17 microseconds, else
nanoseconds, which is right from 1973 to 5138. Digits alone are always a number, never a date.

An ISO 8601 time is a date, or a date and a time of day: `2026-11-20`, `2026-11-20T10:15`,
`2026-11-20 10:15:00,123+01:00`, `20261120T101500Z`, `2026-W47-5`, `2026-324`. Between the two
stands a `T` or a blank; the fraction follows a point or a comma; the zone is `Z`, `UTC` or an
offset, behind one blank at most, and UTC where there is none. Letters may be small. Digits beyond
microseconds are cut. 24:00 is the end of the day; a leap second is not a time.

A form is one of `strptime`'s, with the directives that say numbers, month names and zones the same
way everywhere. It is rewritten as an ISO 8601 time, and read as one; nothing else is read then.

Event times, replays, checks of topics and positions of subscriptions are all read here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from typing import Final, Self

from sequitur.errors import EventTimeSpecError

MAX_EVENT_TIME_MS: Final = 2**63 - 1
BEFORE_ALL_TIME_MS: Final = -1
"""The frontier before its first move. Event times are >= 0, so none is at or behind it."""
FORMAT_BEGINS: Final = " as "
"""In a setting, this stands between a name and the format of what it names."""

# ASCII digits only: [0-9] and not \d.
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z")
_ISO: Final = re.compile(
    r"(?P<year>[0-9]{4})(?P<hyphen>-?)"
    r"(?:(?P<month>[0-9]{2})(?P=hyphen)(?P<day>[0-9]{2})"
    r"|[Ww](?P<week>[0-9]{2})(?:(?P=hyphen)(?P<weekday>[1-7]))?"
    r"|(?P<ordinal>[0-9]{3}))"
    r"(?:[Tt ](?P<hour>[0-9]{2})"
    r"(?:(?P<colon>:?)(?P<minute>[0-9]{2})"
    r"(?:(?P=colon)(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]+))?)?)?"
    r"(?: ?(?:[Zz]|[Uu][Tt][Cc]"
    r"|(?P<sign>[+-]|\N{MINUS SIGN})(?P<zone>[0-9]{2}(?::?[0-9]{2}){0,2})))?)?\Z"
)
# What Spark's casts trim: ASCII blanks and control characters.
BLANKS: Final = "".join(map(chr, (*range(0x21), 0x7F)))
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_MAX_ZONE_S: Final = 18 * 3_600  # java.time's limit
_MAX_DIGITS = 4_000  # int() refuses more than 4,300
_MAX_MINUTE = 59
_MAX_SECOND = 59
_HOURS: Final = 24
_DAY_S: Final = 24 * 3_600
_EPOCH: Final = date(1970, 1, 1)


class TimeUnit(StrEnum):
    """The unit of a time since 1970."""

    S = "s"
    """Seconds."""
    MS = "ms"
    """Milliseconds."""
    US = "us"
    """Microseconds."""
    NS = "ns"
    """Nanoseconds."""
    AUTO = "auto"
    """The one that fits the size of the number."""


AUTO_LIMITS: Final = ((TimeUnit.S, 10**11), (TimeUnit.MS, 10**14), (TimeUnit.US, 10**17))
"""Numbers below a limit, and not below the one before it, have its unit; larger ones are ns."""
UNITS: Final = (TimeUnit.S, TimeUnit.MS, TimeUnit.US, TimeUnit.NS)
"""Each unit is a thousandth of the one before it."""

_DIRECTIVES: Final = {
    "Y": ("year", "([0-9]{4})"),
    "m": ("month", "([0-9]{1,2})"),
    "b": ("month", "([A-Za-z]{3})"),
    "d": ("day", "([0-9]{1,2})"),
    "H": ("hour", "([0-9]{1,2})"),
    "M": ("minute", "([0-9]{1,2})"),
    "S": ("second", "([0-9]{1,2})"),
    "f": ("fraction", "([0-9]{1,30})"),
    "z": ("zone", "(Z|[+-][0-9]{2}(?::?[0-9]{2})?)"),
}
_KNOWN: Final = " ".join(f"%{letter}" for letter in _DIRECTIVES)


@dataclass(frozen=True, slots=True)
class TimeForm:
    text: str
    pattern: str  # a regular expression without its end; a group for each part
    # the groups in order: year, month, day, hour, minute, second, fraction or zone
    parts: tuple[str, ...]
    has_month_name: bool  # whether the month is a name and not a number

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a form such as `%d/%b/%Y:%H:%M:%S %z`."""
        parts: list[str] = []
        pattern = "^"
        place = 0
        while place < len(text):
            if text[place] != "%":
                pattern += re.escape(text[place])
                place += 1
                continue
            letter = text[place + 1 : place + 2]
            place += 2
            if letter == "%":
                pattern += "%"
                continue
            if letter not in _DIRECTIVES:
                raise EventTimeSpecError(f"time form {text!r}: %{letter} is none of {_KNOWN} %%")
            part, group = _DIRECTIVES[letter]
            if part in parts:
                raise EventTimeSpecError(f"time form {text!r}: it has two of one part, the {part}")
            parts.append(part)
            pattern += group
        missing = [part for part in ("year", "month", "day") if part not in parts]
        if missing:
            raise EventTimeSpecError(f"time form {text!r}: it does not say the {missing[0]}")
        return cls(text, pattern, tuple(parts), "%b" in text.replace("%%", ""))

    def as_iso(self, text: str) -> str | None:
        """Rewrite a text of this form as an ISO 8601 time; None for any other text."""
        match = re.match(self.pattern + r"\Z", text)
        if match is None:
            return None
        found = dict(zip(self.parts, match.groups(), strict=True))
        month = found["month"]
        if self.has_month_name:
            name = month.lower()
            if name not in MONTHS:
                return None
            month = str(MONTHS.index(name) + 1)
        day, hour, minute, second = (
            found.get(part, "0").rjust(2, "0") for part in ("day", "hour", "minute", "second")
        )
        fraction, zone = found.get("fraction", "0"), found.get("zone", "Z")
        return (
            f"{found['year']}-{month.rjust(2, '0')}-{day}T{hour}:{minute}:{second}.{fraction}{zone}"
        )


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """How a time is written.

    Attributes:
        unit: The unit of a number. Times in ISO 8601 are read, too. None with a form.
        form: The only form that is read. None with a unit.
    """

    unit: TimeUnit | None = TimeUnit.MS
    form: TimeForm | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a unit, or a form of `strptime`.

        Raises:
            EventTimeSpecError: It is neither.
        """
        if text in set(TimeUnit):
            return cls(TimeUnit(text))
        if "%" in text:
            return cls(None, TimeForm.parse(text))
        raise EventTimeSpecError(
            f"time format {text!r}: expected {', '.join(TimeUnit)} or a form such as %d.%m.%Y %H:%M"
        )

    def __str__(self) -> str:
        return self.form.text if self.form is not None else str(self.unit)

    def read(self, text: str) -> int | None:
        """Return epoch ms of a text; None when it is not written so. Blanks around it are cut."""
        trimmed = text.strip(BLANKS)
        if self.form is not None:
            return iso_ms(self.form.as_iso(trimmed) or "")
        if _NUMBER.match(trimmed):
            return self._of_number(trimmed)
        return iso_ms(trimmed)

    def of_whole(self, number: int) -> int:
        """Return epoch ms of a whole number; beyond 64 bits the greatest number of these."""
        match self._unit_of(number):
            case TimeUnit.S:
                return max(-MAX_EVENT_TIME_MS, min(number * 1000, MAX_EVENT_TIME_MS))
            case TimeUnit.US:
                return number // 1_000
            case TimeUnit.NS:
                return number // 1_000_000
            case _:
                return number

    def _of_number(self, text: str) -> int | None:
        if _INTEGER.match(text) and len(text) < _MAX_DIGITS and abs(int(text)) <= MAX_EVENT_TIME_MS:
            return self.of_whole(int(text))
        number = float(text)
        if math.isinf(number):
            return None
        number = max(-float(MAX_EVENT_TIME_MS), min(number, float(MAX_EVENT_TIME_MS)))
        match self._unit_of(number):
            case TimeUnit.S:
                # Count in microseconds: 1700000000.123 as a double is a little too small.
                found = math.floor(round(number * 1e6) / 1e3)
            case TimeUnit.US:
                found = math.floor(number / 1e3)
            case TimeUnit.NS:
                found = math.floor(number / 1e6)
            case _:
                found = math.floor(number)
        return max(-MAX_EVENT_TIME_MS, min(found, MAX_EVENT_TIME_MS))

    def _unit_of(self, number: float) -> TimeUnit:
        if self.unit is not TimeUnit.AUTO:
            return self.unit or TimeUnit.MS
        return next((unit for unit, limit in AUTO_LIMITS if abs(number) < limit), TimeUnit.NS)


MILLISECONDS: Final = TimeFormat()


def split_format(text: str) -> tuple[str, TimeFormat]:
    """Split what a setting says of a time into where it stands and how it is written.

    Raises:
        EventTimeSpecError: It is written in no format.
    """
    where, begins, written = text.rpartition(FORMAT_BEGINS)
    return (where, TimeFormat.parse(written)) if begins else (text, MILLISECONDS)


def iso_ms(text: str) -> int | None:
    """Return an ISO 8601 time in epoch ms; None for any other text."""
    match = _ISO.match(text)
    if match is None:
        return None
    days = _days(match)
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    fraction = (match["fraction"] or "")[:6].ljust(6, "0")
    offset_s = _offset_s(match)
    if days is None or offset_s is None or minute > _MAX_MINUTE or second > _MAX_SECOND:
        return None
    is_over = hour > _HOURS or minute or second or (match["fraction"] or "").strip("0")
    if hour >= _HOURS and is_over:
        return None
    seconds = days * _DAY_S + hour * 3_600 + minute * 60 + second - offset_s
    return seconds * 1000 + int(fraction) // 1000


def _days(match: re.Match[str]) -> int | None:
    """Return a date's days since 1970; None if there is no such date."""
    year = int(match["year"])
    try:
        if match["month"] is not None:
            # A leap year stands in for year 0, which `date` does not know.
            found = date(year or 4, int(match["month"]), int(match["day"]))
        elif match["week"] is not None:
            found = date.fromisocalendar(year, int(match["week"]), int(match["weekday"] or 1))
        else:
            found = date(year, 1, 1) + timedelta(days=int(match["ordinal"]) - 1)
            if found.year != year:
                return None
    except (ValueError, OverflowError):
        return None
    return (found - _EPOCH).days


def _offset_s(match: re.Match[str]) -> int | None:
    """Return how many seconds a zone is ahead of UTC; None if it is invalid."""
    digits = (match["zone"] or "").replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    offset_s = hours * 3_600 + minutes * 60 + seconds
    if minutes > _MAX_MINUTE or seconds > _MAX_SECOND or offset_s > _MAX_ZONE_S:
        return None
    return offset_s if match["sign"] in (None, "+") else -offset_s

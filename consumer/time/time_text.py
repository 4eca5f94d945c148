"""What a text says about when: a number in a unit, an ISO 8601 time, or a form of the user's own.

A number has the unit that the setting names; with `auto` its size tells: below 10^11 seconds, below
10^14 milliseconds, below 10^17 microseconds, else nanoseconds, which is right from 1973 to 5138.

A form is one of `strptime`'s, with the directives that say numbers, month names and zones the same
way in Python and Java. It is rewritten as an ISO 8601 time, and read as one.
"""

from __future__ import annotations

import calendar
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from sequitur.errors import EventTimeSpecError

MAX_EVENT_TIME_MS: Final = 2**63 - 1

# ASCII digits only: [0-9] and not \d, so that Python and Java agree.
NUMBER_PATTERN: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
ISO_PATTERN: Final = (
    r"^([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"([T ]([0-9]{2}):([0-9]{2})(:([0-9]{2})([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?$"
)
# What Spark's casts trim: ASCII blanks and control characters.
BLANKS: Final = "".join(map(chr, (*range(0x21), 0x7F)))
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_NUMBER = re.compile(NUMBER_PATTERN.removesuffix("$") + r"\Z")
_INTEGER = re.compile(r"^[+-]?[0-9]+\Z")
_ISO = re.compile(ISO_PATTERN.removesuffix("$") + r"\Z")
_MAX_ZONE_MINUTES = 18 * 60  # java.time's limit
_MAX_DIGITS = 4_000  # int() refuses more than 4,300
_MAX_MINUTE = 59
_MAX_SECOND = 59
_MAX_HOUR = 23


class TimeUnit(StrEnum):
    """What an epoch time counts."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"
    AUTO = "auto"
    """The one that the number's size says."""


AUTO_LIMITS: Final = ((TimeUnit.S, 10**11), (TimeUnit.MS, 10**14), (TimeUnit.US, 10**17))
"""Numbers below a limit, and not below the one before it, have its unit; greater ones are ns."""
UNITS: Final = (TimeUnit.S, TimeUnit.MS, TimeUnit.US, TimeUnit.NS)
"""Each is a thousandth of the one before it."""

_DIRECTIVES: Final = {
    "Y": ("year", "([0-9]{4})"),
    "m": ("month", "([0-9]{1,2})"),
    "b": ("month", "([A-Za-z]{3})"),
    "d": ("day", "([0-9]{1,2})"),
    "H": ("hour", "([0-9]{1,2})"),
    "M": ("minute", "([0-9]{1,2})"),
    "S": ("second", "([0-9]{1,2})"),
    "f": ("fraction", "([0-9]{1,9})"),
    "z": ("zone", "(Z|[+-][0-9]{2}(?::?[0-9]{2})?)"),
}
_KNOWN: Final = " ".join(f"%{letter}" for letter in _DIRECTIVES)


@dataclass(frozen=True, slots=True)
class TimeForm:
    """A form of `strptime`."""

    text: str
    # a regular expression for Python and Java alike, without its end, for which they have different
    # signs; a group for each part
    pattern: str
    # what the groups are, in their order: year, month, day, hour, minute, second, fraction or zone
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
        """Rewrite a text of this form as an ISO 8601 time; None of any other."""
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
        unit: What a number counts; ISO 8601 times are read, too. None with a form.
        form: The only form that is read; None with a unit.
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
            return _of_iso(self.form.as_iso(trimmed) or "")
        if _NUMBER.match(trimmed):
            return self._of_number(trimmed)
        return _of_iso(trimmed)

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
                # By microseconds: 1700000000.123 as a double is a little less than that.
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


def _of_iso(text: str) -> int | None:
    match = _ISO.match(text)
    if match is None:
        return None
    year, month, day = (int(match[i]) for i in (1, 2, 3))
    hour, minute, second = (int(match[i] or 0) for i in (5, 6, 8))
    zone = match[10] or "Z"
    offset = 0
    if zone != "Z":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        hours, minutes = int(digits[:2]), int(digits[2:])
        if minutes > _MAX_MINUTE or hours * 60 + minutes > _MAX_ZONE_MINUTES:
            return None
        offset = (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
    # A leap year stands in for year 0, which calendar does not know; both lie before 1970.
    days = calendar.monthrange(year or 4, month)[1] if 1 <= month <= 12 else 0  # noqa: PLR2004
    if not 1 <= day <= days or hour > _MAX_HOUR or minute > _MAX_MINUTE or second > _MAX_SECOND:
        return None
    seconds = calendar.timegm((year or 4, month, day, hour, minute, second)) - offset * 60
    micros = int((match[9] or ".0")[1:7].ljust(6, "0"))
    return seconds * 1000 + micros // 1000

"""Values and the event time they give: one table for the reference and the job."""

from __future__ import annotations

from typing import Final

from sequitur.consumer import MISSING, NEGATIVE, TOO_FAR_FUTURE, UNPARSABLE, TimeBounds

LATEST_MS: Final = 1_800_000_000_000
"""Later than this is too far in the future."""
BOUNDS: Final = TimeBounds(latest_ms=LATEST_MS)

_T: Final = 1_700_000_000_123


def _field(text: str) -> bytes:
    return b'{"occurred_at":%b}' % text.encode()


# Text as it stands in a JSON string or a header, and what it gives.
TEXT_CASES: Final[list[tuple[str, int | str]]] = [
    ("1700000000123", _T),
    (" 1700000000123 ", _T),
    ("+1700000000123", _T),
    ("0001700000000123", _T),
    ("1700000000123.999", _T),
    ("1.700000000123e12", _T),
    ("1700000000123.", _T),
    (".5", 0),
    ("0", 0),
    ("-0", 0),
    ("-1", NEGATIVE),
    ("-0.5", NEGATIVE),
    ("-1e300", NEGATIVE),
    (str(LATEST_MS), LATEST_MS),
    (str(LATEST_MS + 1), TOO_FAR_FUTURE),
    ("32503680000000", TOO_FAR_FUTURE),  # the year 3000
    (str(2**63 - 1), TOO_FAR_FUTURE),
    (str(2**63), TOO_FAR_FUTURE),
    ("1" * 30, TOO_FAR_FUTURE),
    ("1e300", TOO_FAR_FUTURE),
    ("1" * 400, UNPARSABLE),  # beyond a double, too
    ("1e400", UNPARSABLE),
    ("", UNPARSABLE),
    (" ", UNPARSABLE),
    ("abc", UNPARSABLE),
    ("1_000", UNPARSABLE),
    ("0x10", UNPARSABLE),
    ("1d", UNPARSABLE),
    ("1 2", UNPARSABLE),
    ("--1", UNPARSABLE),
    (".", UNPARSABLE),
    ("NaN", UNPARSABLE),
    ("Infinity", UNPARSABLE),
    ("true", UNPARSABLE),
    ("١٢٣", UNPARSABLE),  # digits, but not ASCII's
    ("2023-11-14T22:13:20.123Z", _T),
    ("2023-11-14 22:13:20.123", _T),
    ("2023-11-14T22:13:20.123999999Z", _T),
    ("2023-11-14T23:13:20.123+01:00", _T),
    ("2023-11-14T23:13:20.123+0100", _T),
    ("2023-11-14T23:13:20.123+01", _T),
    ("2023-11-14T16:43:20.123-05:30", _T),
    ("2023-11-14T22:13:20Z", _T - 123),
    ("2023-11-14T22:13Z", _T - 20_123),
    ("2023-11-14T22:13", _T - 20_123),
    ("2023-11-14", 1_699_920_000_000),
    ("2024-02-29", 1_709_164_800_000),
    ("1970-01-01T00:00:00Z", 0),
    ("1969-12-31T23:59:59.999Z", NEGATIVE),
    ("0001-01-01T00:00:00+18:00", NEGATIVE),
    ("0000-02-29", NEGATIVE),
    ("3000-01-01T00:00:00Z", TOO_FAR_FUTURE),
    ("9999-12-31T23:59:59.999999999-18:00", TOO_FAR_FUTURE),
    ("2023-02-29", UNPARSABLE),
    ("2023-13-01", UNPARSABLE),
    ("2023-00-01", UNPARSABLE),
    ("2023-01-00", UNPARSABLE),
    ("2023-11-14T24:00:00Z", UNPARSABLE),
    ("2023-11-14T22:60:00Z", UNPARSABLE),
    ("2023-11-14T22:13:60Z", UNPARSABLE),
    ("2023-11-14T22:13:20.Z", UNPARSABLE),
    ("2023-11-14T22:13:20+18:01", UNPARSABLE),
    ("2023-11-14T22:13:20+19:00", UNPARSABLE),
    ("2023-11-14T22:13:20+01:60", UNPARSABLE),
    ("2023-11-14T22:13:20 Europe/Paris", UNPARSABLE),
    ("2023-11-14T22:13:20z", UNPARSABLE),
    ("2023-11-14T", UNPARSABLE),
    ("2023-11-14T22", UNPARSABLE),
    ("2023-11", UNPARSABLE),
    ("2023-1-1", UNPARSABLE),
    ("20231114T221320Z", UNPARSABLE),
    ("12023-11-14", UNPARSABLE),
    ("-2023-11-14", UNPARSABLE),
    ("22:13:20", UNPARSABLE),
    ("now", UNPARSABLE),
]

_DAY: Final = 1_699_920_000_000
_MOST: Final = 2**63 - 1

# How a time is written, its text, and what it gives.
FORMAT_CASES: Final[list[tuple[str, str, int | str]]] = [
    ("s", "1700000000", _T - 123),
    ("s", " 1700000000.123 ", _T),
    ("s", "1700000000.1239", _T),
    ("s", "1.700000000123e9", _T),
    ("s", "2023-11-14T22:13:20.123Z", _T),
    ("s", "-1", NEGATIVE),
    ("s", "-0.0000001", 0),
    ("s", "-0.001", NEGATIVE),
    ("s", str(_MOST // 1000), _MOST // 1000 * 1000),
    ("s", str(_MOST // 1000 + 1), _MOST),
    ("s", str(_MOST), _MOST),
    ("s", "1e300", _MOST),
    ("s", "1e400", UNPARSABLE),
    ("us", "1700000000123999", _T),
    ("us", "1700000000123998.5", _T),
    ("us", "999", 0),
    ("us", "-1", NEGATIVE),
    ("us", "-0.5", NEGATIVE),
    ("us", "2023-11-14", _DAY),
    ("ns", "1700000000123999999", _T),
    ("ns", str(_MOST), 9_223_372_036_854),
    ("ns", str(_MOST + 1), 9_223_372_036_854),
    ("ns", "-9223372036854775808", NEGATIVE),
    ("auto", "1700000000", _T - 123),
    ("auto", "1700000000.123", _T),
    ("auto", "1700000000123", _T),
    ("auto", "1700000000123.7", _T),
    ("auto", "1700000000123999", _T),
    ("auto", "1700000000123999999", _T),
    ("auto", "99999999999", 99_999_999_999_000),
    ("auto", "100000000000", 100_000_000_000),
    ("auto", "99999999999999", 99_999_999_999_999),
    ("auto", "100000000000000", 100_000_000_000),
    ("auto", "100000000000000000", 100_000_000_000),
    ("auto", "0", 0),
    ("auto", "-1", NEGATIVE),
    ("auto", "now", UNPARSABLE),
    ("%d.%m.%Y", "14.11.2023", _DAY),
    ("%d.%m.%Y", " 1.2.2023 ", 1_675_209_600_000),
    ("%d.%m.%Y", "14.11.23", UNPARSABLE),
    ("%d.%m.%Y", "31.2.2023", UNPARSABLE),
    ("%d.%m.%Y", "14a11.2023", UNPARSABLE),
    ("%d.%m.%Y", "1700000000123", UNPARSABLE),
    ("%d.%m.%Y", "2023-11-14", UNPARSABLE),
    ("%d/%b/%Y:%H:%M:%S %z", "14/Nov/2023:23:13:20 +0100", _T - 123),
    ("%d/%b/%Y:%H:%M:%S %z", "14/NOV/2023:22:13:20 Z", _T - 123),
    ("%d/%b/%Y:%H:%M:%S %z", "14/Nox/2023:23:13:20 +0100", UNPARSABLE),
    ("%d/%b/%Y:%H:%M:%S %z", "14/Nov/2023:23:13:20 +19:00", UNPARSABLE),
    ("%Y%m%dT%H%M%S.%f", "20231114T221320.123", _T),
    ("%Y%m%dT%H%M%S.%f", "20231114T221320.123999999", _T),
    ("%Y%m%dT%H%M%S.%f", "20231114T246060.1", UNPARSABLE),
    ("at %m-%d-%Y %H:%M (%%)", "at 11-14-2023 22:13 (%)", _T - 20_123),
    ("%Y-%m-%d", "1969-12-31", NEGATIVE),
    ("%Y-%m-%d", "2023-11-14\u2028", UNPARSABLE),
    ("%Y-%m-%d", "\u0662023-11-14", UNPARSABLE),
]

JSON_CASES: Final[list[tuple[bytes | None, int | str]]] = [
    *((_field(f'"{text}"'), expected) for text, expected in TEXT_CASES),
    (_field("1700000000123"), _T),
    (_field("1700000000123.75"), _T),
    (_field("1.700000000123e12"), _T),
    (_field("1.700000000123E+12"), _T),
    (_field("0.1e3"), 100),
    (_field("-0.0"), 0),
    (_field("-1"), NEGATIVE),
    (_field("32503680000000"), TOO_FAR_FUTURE),
    (_field("1" * 30), TOO_FAR_FUTURE),
    (_field("1e300"), TOO_FAR_FUTURE),
    (_field("1e400"), UNPARSABLE),
    (_field("true"), UNPARSABLE),
    (_field("false"), UNPARSABLE),
    (_field("[1]"), UNPARSABLE),
    (_field('{"occurred_at":1}'), UNPARSABLE),
    (_field("null"), MISSING),
    (_field("NaN"), UNPARSABLE),
    (_field("01"), UNPARSABLE),
    (_field("+1"), UNPARSABLE),
    (_field("1."), UNPARSABLE),
    (_field(".5"), UNPARSABLE),
    (None, MISSING),
    (b"{}", MISSING),
    (b"null", MISSING),
    (b"5", MISSING),
    (b'"1700000000123"', MISSING),
    (b"[]", MISSING),
    (b'[{"occurred_at":1}]', MISSING),
    (b"", UNPARSABLE),
    (b" ", UNPARSABLE),
    (b"not json", UNPARSABLE),
    (b'{"occurred_at":1', UNPARSABLE),
    (b'{"occurred_at":1,}', UNPARSABLE),
    (b'{"occurred_at":1,"b":tru}', UNPARSABLE),
    (b'{"occurred_at":1} trailing', 1),
    (b' \t\r\n{ "occurred_at" : 1 } ', 1),
    (b'{"occurred\\u005fat":1}', 1),
    (b'{"occurred_at":"\\u0031\\u0032"}', 12),
    (b'{"Occurred_at":1}', MISSING),
    (b'{"x":"\\"occurred_at\\":2","occurred_at":1}', 1),
    (b'{"x":{"occurred_at":2},"occurred_at":1}', 1),
    (b'{"occurred_at":1,"x":{"occurred_at":2}}', 1),
    (b'{"x":{"occurred_at":2}}', MISSING),
    (b'{"x":[{"occurred_at":2}],"occurred_at":1}', 1),
    (b'{"occurred_at":1,"occurred_at":2}', 1),
    (b'{"occurred_at":null,"occurred_at":2}', 2),
    (b'{"\xff":1,"occurred_at":1}', 1),
    (b'{"x":"\xff\xfe","occurred_at":1}', 1),
    (b'{"occurred_at":"\xff"}', UNPARSABLE),
    (b'\xff{"occurred_at":1}', UNPARSABLE),
    (b'\xef\xbb\xbf{"occurred_at":1}', UNPARSABLE),
    (b'{"x":"\n\x00","occurred_at":1}', 1),
]

Headers = list[tuple[str, bytes | None]]


def _header(text: str) -> Headers:
    return [("at", text.encode())]


HEADER_CASES: Final[list[tuple[Headers | None, int | str]]] = [
    *((_header(text), expected) for text, expected in TEXT_CASES),
    (None, MISSING),
    ([], MISSING),
    ([("other", b"1")], MISSING),
    ([("at", None)], MISSING),
    ([("AT", b"1")], MISSING),
    ([("at", b"1"), ("x", b"3"), ("at", b"2")], 2),
    ([("at", b"1"), ("at", None)], MISSING),
    ([("at", b"\xff")], UNPARSABLE),
    ([("at", b"\x00\x00\x01\x8b\xcf\xe5\x68\x7b")], UNPARSABLE),
]

TIMESTAMP_CASES: Final[list[tuple[int, int | str]]] = [
    (-1, MISSING),
    (0, 0),
    (_T, _T),
    (LATEST_MS, LATEST_MS),
    (LATEST_MS + 1, TOO_FAR_FUTURE),
]

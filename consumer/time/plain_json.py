"""A regular expression that reads an epoch time out of a plain JSON object, and nothing else.

A JSON parser costs most of what staging a row does. Most events are flat objects whose event time
is a whole number; for those one regular expression finds it, and it matches only where a parser
gives the same: the whole value is one valid object, without nesting, escapes, control characters
or anything else that it would have to understand. Any other value is left to the parser.

Possessive throughout, so that a value that does not match is given up without backtracking, and
bounded, so that no value can exhaust the stack. Python and Java read it alike; a property test
holds it to the reference.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_STRING: Final = r'"[^"\\\x00-\x1f]{0,9999}+"'
_NUMBER: Final = r"-?+(?:0|[1-9][0-9]{0,99}+)(?:\.[0-9]{1,99}+)?+(?:[eE][+-]?+[0-9]{1,2}+)?+"
_VALUE: Final = f"(?:{_STRING}|{_NUMBER}|true|false|null)"
_TIME: Final = "(0|[1-9][0-9]{0,17}+)"
_MOST_FIELDS: Final = 99
_BLANK: Final = "[ ]?+"


def plain_json_pattern(path: Sequence[str]) -> str | None:
    """Return the expression for a field, its number as group 1; None where a path has none.

    Args:
        path: Names from the top of the value down to the field.
    """
    if len(path) != 1 or re.search(r'["\\\x00-\x1f]', path[0]):
        return None
    name = f'"{re.escape(path[0])}"'
    before = f"(?!{name}){_STRING}{_BLANK}:{_BLANK}{_VALUE}{_BLANK},{_BLANK}"
    after = f"{_BLANK},{_BLANK}{_STRING}{_BLANK}:{_BLANK}{_VALUE}"
    return (
        rf"^\{{{_BLANK}(?:{before}){{0,{_MOST_FIELDS}}}+"
        rf"{name}{_BLANK}:{_BLANK}{_TIME}(?:{after}){{0,{_MOST_FIELDS}}}+{_BLANK}\}}$"
    )

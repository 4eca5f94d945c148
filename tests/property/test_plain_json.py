"""Where the fast expression finds an event time, a JSON parser finds the same one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sequitur.consumer import parse_event_time_spec, read_event_time
from sequitur.consumer.time.plain_json import plain_json_pattern
from tests.support.event_time_cases import JSON_CASES
from tests.support.json_documents import PLAIN, PLAIN_TEXT, damaged, documents

_SPEC = parse_event_time_spec("json:at")
_PATTERN = re.compile(plain_json_pattern(("at",)) or "")


def _read(value: bytes) -> int | None:
    return read_event_time(_SPEC, value=value).ms


@given(documents() | damaged())
@example('{"at":5}')
@example('{"a":1, "at": 5, "at": 6}')
@example('{"a":"x"at":5}')
@example('{"at":05}')
@example('{"a":1e999,"at":5}')
@example('{"at":5}x')
def test_expression_finds_what_a_parser_finds(document: str) -> None:
    """It matches, and then the parser's answer is the same; or it leaves the value alone."""
    found = _PATTERN.search(document)
    if found is not None:
        assert _read(document.encode()) == int(found[1])


@given(
    st.dictionaries(PLAIN_TEXT.filter(lambda name: name != "at"), PLAIN, max_size=5),
    st.integers(0, 10**18 - 1),
    st.sampled_from([(",", ":"), (", ", ": ")]),
)
def test_flat_objects_are_found(
    fields: dict[str, Any], time_ms: int, separators: tuple[str, str]
) -> None:
    """It is worth something: plain objects match, with and without blanks."""
    document = json.dumps({**fields, "at": time_ms}, ensure_ascii=False, separators=separators)
    found = _PATTERN.search(document)
    assert found is not None
    assert found[1] == str(time_ms)


@pytest.mark.parametrize("value", [value for value, _ in JSON_CASES if value is not None])
def test_expression_agrees_with_the_table(value: bytes) -> None:
    """What the table says of each value, the expression says too, or nothing."""
    pattern = re.compile(plain_json_pattern(("occurred_at",)) or "")
    found = pattern.search(value.decode(errors="replace"))
    spec = parse_event_time_spec("json:occurred_at")
    if found is not None:
        assert read_event_time(spec, value=value).ms == int(found[1])


def test_long_values_are_given_up_in_time() -> None:
    """Neither many fields nor long strings exhaust the stack, or take more than one pass."""
    many = json.dumps({f"f{n}": n for n in range(100_000)} | {"at": 1})
    long = json.dumps({"a": "x" * 1_000_000, "at": 1})
    assert _PATTERN.search(many) is None
    assert _PATTERN.search(long) is None


@pytest.mark.parametrize("path", [("a", "b"), ('a"b',), ("a\\b",), ("a\nb",)])
def test_some_paths_have_no_expression(path: tuple[str, ...]) -> None:
    """A nested field, or a name that JSON writes with escapes, is the parser's."""
    assert plain_json_pattern(path) is None


def test_names_are_taken_literally() -> None:
    """A name with characters that mean something in expressions stands for itself."""
    pattern = re.compile(plain_json_pattern(("a.b+(c)",)) or "")
    assert pattern.search('{"a.b+(c)":5}')
    assert not pattern.search('{"aXb+(c)":5}')

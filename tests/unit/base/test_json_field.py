"""How settings name fields of JSON values, whatever the fields are called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sequitur.base.json_field import FieldPath, FieldWatch, JsonField, parse_key
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.event_time import read_event_time
from sequitur.errors import KeySpecError

_DOTTED: list[tuple[str, Any, Any]] = [
    ("a.b", {"a": {"b": 1}}, 1),
    ("a.b", {"a.b": 1}, 1),
    ("a.b", {"a.b": 2, "a": {"b": 1}}, 1),
    ("a.b", {"a.b": 1, "a": {"b": None}}, 1),
    ("a.b", {"a.b": 1, "a": {}}, 1),
    ("a.b", {"a.b": 1, "a": 7}, 1),
    ("a.b", {"a.b": 1, "a": [{"b": 2}]}, 1),
    ("a.b", {"a.b": None}, None),
    ("a.b", {"x": {"a.b": 1}}, None),
    ("a.b", {"a": {"a.b": 1}}, None),
    ("a.b.c", {"a": {"b": {"c": 1}}}, 1),
    ("a.b.c", {"a": {"b.c": 1}}, 1),
    ("a.b.c", {"a.b": {"c": 1}}, 1),
    ("a.b.c", {"a.b.c": 1}, 1),
    ("a.b.c", {"a.b.c": 2, "a.b": {"c": 3}, "a": {"b": {"c": 1}, "b.c": 4}}, 1),
    ("a.b.c", {"a.b.c": 1, "a.b": {"c": 2}, "a": {"b.c": 3}}, 1),
    ("a.b.c", {"a.b": {"c": 2}, "a": {"b.c": 1, "b": 5}}, 1),
    ("a.b.c.d", {"a.b": {"c.d": 1}}, 1),
    ("a.b.c.d", {"a": {"b.c": {"d": 1}}}, 1),
    ("a.0", {"a": [1]}, None),
    ("a.0", {"a": {"0": 1}}, 1),
    ("größe.é", {"größe.é": 1}, 1),
    ("@timestamp", {"@timestamp": 1}, 1),
    ("at.$date.$numberLong", {"at": {"$date": {"$numberLong": "1"}}}, 1),
    ('a"b\\c', {'a"b\\c': 1}, 1),
    ('a".b', {'a".b': 1}, 1),
    ("a\n.b", {"a\n": {"b": 1}}, 1),
    ("what's*up?", {"what's*up?": 1}, 1),
]
_POINTERS: list[tuple[str, Any, Any]] = [
    ("/a.b", {"a.b": 1}, 1),
    ("/a.b", {"a": {"b": 1}}, None),
    ("/a/b", {"a": {"b": 1}}, 1),
    ("/a/b", {"a/b": 1, "a.b": 1}, None),
    ("/a/b.c", {"a": {"b.c": 1}}, 1),
    ("/a~1b", {"a/b": 1}, 1),
    ("/a~0b", {"a~b": 1}, 1),
    ("/a~01b", {"a~1b": 1}, 1),
    ("/~1", {"/": 1}, 1),
    ("/", {"": 1}, 1),
    ("//", {"": {"": 1}}, 1),
    ("/a/", {"a": {"": 1}}, 1),
    ("/a/0", {"a": [1]}, 1),
    ("/a/1/b.c", {"a": [0, {"b.c": 1}]}, 1),
    ("/a/0/0", {"a": [[1]]}, 1),
    ("/0", [1], 1),
    ("/a/0", {"a": {"0": 1}}, 1),
    ("/a/1", {"a": [1]}, None),
    ("/a/0", {"a": [None]}, None),
    ("/a/00", {"a": [1]}, None),
    ("/a/-", {"a": [1]}, None),
    ("/a/-1", {"a": [1]}, None),
    ("/a/99999999999999999999", {"a": [1]}, None),
    ("/größe", {"größe": 1}, 1),
    ('/a"\\b', {'a"\\b': 1}, 1),
    ("/a..b", {"a..b": 1}, 1),
    ("/ ", {" ": 1}, 1),
]


@pytest.mark.promise("field-names-dots")
@pytest.mark.parametrize(("path", "document", "expected"), [*_DOTTED, *_POINTERS])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_field_is_found_by_keys_and_event_times_alike(
    path: str, document: Any, expected: Any, ascii_only: bool
) -> None:
    """One syntax for all that names a field, also where its name is escaped in the value."""
    value = json.dumps(document, ensure_ascii=ascii_only).encode()
    found = parse_key(f"json:{path}").text_of(value)
    assert (None if found is None else int(found)) == expected
    spec = parse_event_time_spec(f"json:{path}")
    assert read_event_time(spec, value=value).ms == expected


@pytest.mark.parametrize("text", ["json:/a~b", "json:/a~", "json:/~2", "json:/~/b"])
def test_half_an_escape_is_refused(text: str) -> None:
    with pytest.raises(KeySpecError, match=r"follows ~"):
        parse_key(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("a", "b"), "a.b"),
        (("a.b",), "/a.b"),
        (("a", "b.c"), "/a/b.c"),
        (("",), "/"),
        (("a", ""), "/a/"),
        (("/a",), "/~1a"),
        (("a/b",), "a/b"),
        (("~",), "~"),
        (("~.", "/"), "/~0./~1"),
    ],
)
def test_names_are_written_as_they_are_read(names: tuple[str, ...], text: str) -> None:
    """Whoever is told which fields there are can put the text into the setting."""
    path = FieldPath.of(names)
    assert str(path) == text
    assert FieldPath.parse(text) == path
    document: Any = 1
    for name in reversed(names):
        document = {name: document}
    assert JsonField(text).of(json.dumps(document).encode()) == b"1"


def test_a_field_that_none_has_is_told_at_once_and_once_a_minute_until_one_has_it() -> None:
    told: list[str] = []
    times_s = iter([0.0, 30.0, 60.0, 119.0])
    watch = FieldWatch("the key", told.append, lambda: next(times_s))
    watch.look(0, has=False, instead=lambda: "")
    assert told == []
    for _ in range(4):
        watch.look(1, has=False, instead=lambda: "and they have no fields")
    assert told == [
        "no event has the key, and they have no fields",
        "none of 3 events has the key, and they have no fields",
    ]
    watch.look(1, has=True, instead=lambda: "")
    watch.look(1, has=False, instead=lambda: "")
    assert len(told) == 2

"""The event id survives its way through a header, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.errors import MalformedEventIdError
from sequitur.kafka.records import (
    EventId,
    check_producer_name,
    name_of_a_life,
    new_generation,
    parse_event_id,
)

_names = st.text(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~-", min_size=1, max_size=200
)


@given(_names, st.integers(0, 2**63 - 1), st.from_regex(r"([0-9a-f]{8})?", fullmatch=True))
def test_an_event_id_reads_back_as_it_was_written(
    name: str, sequence: int, generation: str
) -> None:
    """Encoding and parsing are each other's inverse, for all names that may be given."""
    try:
        check_producer_name(name)
    except MalformedEventIdError:
        assert name.endswith("~") or name[-9] == "~"
        return
    event_id = EventId(name, sequence, generation)
    assert parse_event_id(event_id.encode()) == event_id


def test_a_life_without_a_journal_is_a_producer_of_its_own() -> None:
    """Its name is no generation of another name, so its events are counted by themselves."""
    name = name_of_a_life("me")
    assert parse_event_id(EventId(name, 7).encode()) == EventId(name, 7)
    assert name != name_of_a_life("me")
    generation = new_generation()
    assert parse_event_id(EventId("me", 7, generation).encode()) == EventId("me", 7, generation)


@pytest.mark.parametrize(
    "value",
    [b"", b"a", b"a:", b":1", b"a:01", b"a:-1", b"a:1:2", b"a b:1", b"a:9223372036854775808",
     b"a:1\n", b"\xff:1", b"x" * 211 + b":1"],
)  # fmt: skip
def test_anything_else_is_no_event_id(value: bytes) -> None:
    """A foreign header of the same name is told from ours."""
    with pytest.raises(MalformedEventIdError, match="is not an event id"):
        parse_event_id(value)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "x" * 201, "a~", "a~0123abcd"])
def test_a_name_that_an_event_id_cannot_hold_is_refused(name: str) -> None:
    """The producer's name is checked where it is given, not when the first event is read."""
    with pytest.raises(MalformedEventIdError, match="producer name"):
        check_producer_name(name)

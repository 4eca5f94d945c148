"""The event id survives its way through a header, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer._event_id import (
    EventId,
    MalformedEventIdError,
    check_producer_name,
    parse_event_id,
)

_names = st.text(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~-", min_size=1, max_size=200
)


@given(_names, st.integers(0, 2**63 - 1))
def test_an_event_id_reads_back_as_it_was_written(name: str, sequence: int) -> None:
    """Encoding and parsing are each other's inverse."""
    event_id = EventId(check_producer_name(name), sequence)
    assert parse_event_id(event_id.encode()) == event_id


@pytest.mark.parametrize(
    "value",
    [b"", b"a", b"a:", b":1", b"a:01", b"a:-1", b"a:1:2", b"a b:1", b"a:9223372036854775808",
     b"a:1\n", b"\xff:1", b"x" * 201 + b":1"],
)  # fmt: skip
def test_anything_else_is_no_event_id(value: bytes) -> None:
    """A foreign header of the same name is told from ours."""
    with pytest.raises(MalformedEventIdError, match="is no event id"):
        parse_event_id(value)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "x" * 201])
def test_a_name_that_an_event_id_cannot_hold_is_refused(name: str) -> None:
    """The producer's name is checked where it is given, not when the first event is read."""
    with pytest.raises(MalformedEventIdError, match="producer name"):
        check_producer_name(name)

"""Where a subscription's records are in a topic that may have grown."""

from __future__ import annotations

import google_crc32c
import pytest

from sequitur.consumer.subscription.stored_records import (
    StoredRecords,
    place_of,
    state_key,
    what_helps,
)
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import CursorDamagedError, CursorVersionError
from tests.support.golden import golden_records

_HOME = 7


def _written(ms: int, *, generation: int = 0) -> StoredRecords:
    """Return what was written then."""
    state = SubscriptionState(written_ms=ms).encode(generation=generation)
    return StoredRecords({state_key("billing"): state})


_OTHERS = StoredRecords({state_key("other"): SubscriptionState(written_ms=99).encode()})
_NEWER = b'{"format":99}'
_NEWER_FORMAT = StoredRecords({state_key("billing"): b'{"format":99}'})


@pytest.mark.promise("sub-sequitur-cursors-gets")
@pytest.mark.parametrize(
    ("read", "place"),
    [
        ({}, _HOME),
        ({1: _OTHERS}, _HOME),
        ({_HOME: _written(9), 3: _written(5)}, _HOME),
        ({_HOME: _written(5), 3: _written(9)}, 3),
        ({_HOME: _written(9, generation=1), 3: _written(5, generation=2)}, 3),
        ({1: _OTHERS, 3: _written(5)}, 3),
        ({1: _written(6), 3: _written(5)}, 1),
        ({1: _written(6), 3: _NEWER_FORMAT}, 3),
    ],
    ids=[
        *("nothing", "others", "at home", "by a later one", "clock went back"),
        *("before it has grown", "grown twice", "not readable"),
    ],
)
def test_records_are_where_they_were_written(read: dict[int, StoredRecords], place: int) -> None:
    """Which partition a name goes to depends on how many there are."""
    assert place_of(read, "billing", _HOME) == place


def test_what_a_newer_version_wrote_is_not_to_be_deleted() -> None:
    with pytest.raises(CursorVersionError) as newer:
        StoredRecords({state_key("s"): b"%08x" % google_crc32c.value(_NEWER) + _NEWER}).state("s")
    assert what_helps(newer.value) == str(newer.value)
    assert str(newer.value).startswith("subscription 's': the state of a subscription has format")
    assert "run the version that has written it, or delete" in str(newer.value)
    with pytest.raises(CursorDamagedError) as damaged:
        _NEWER_FORMAT.state("billing")
    assert what_helps(damaged.value).endswith("; only a deletion helps")


@pytest.mark.promise("sub-older-version-meets")
def test_what_an_older_version_stored_is_refused_by_name() -> None:
    """Its state, its claim and its cursor, each of the first form."""
    records = golden_records("sequitur-cursors")
    found = StoredRecords(records)
    for read in (found.subscription, found.state, found.group, found.newest_generation):
        with pytest.raises(CursorVersionError, match=r"'billing': .*state .* format 1, .* reads 2"):
            read("billing")
    with pytest.raises(CursorVersionError, match="'billing' has the first form, this version re"):
        found.claim("billing")
    state = SubscriptionState().encode()
    with pytest.raises(CursorVersionError, match=r"billing on orders-0: a cursor of format 1"):
        StoredRecords({**records, state_key("billing"): state}).subscription("billing")

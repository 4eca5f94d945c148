"""Where a subscription's records are in a topic that may have grown."""

from __future__ import annotations

import pytest

from sequitur.consumer.subscription.state import SubscriptionState
from sequitur.pipelines.subscriptions.stored_records import StoredRecords, place_of, state_key

_HOME = 7


def _written(ms: int) -> StoredRecords:
    return StoredRecords({state_key("billing"): SubscriptionState(written_ms=ms).encode()})


_OTHERS = StoredRecords({state_key("other"): SubscriptionState(written_ms=99).encode()})
_NEWER_FORMAT = StoredRecords({state_key("billing"): b'{"format":99}'})


@pytest.mark.parametrize(
    ("read", "place"),
    [
        ({}, _HOME),
        ({1: _OTHERS}, _HOME),
        ({_HOME: _written(5), 3: _written(9)}, _HOME),
        ({1: _OTHERS, 3: _written(5)}, 3),
        ({1: _written(6), 3: _written(5)}, 1),
        ({1: _written(6), 3: _NEWER_FORMAT}, 3),
    ],
    ids=["nothing", "others", "at home", "before it has grown", "grown twice", "not readable"],
)
def test_records_are_where_they_were_written(read: dict[int, StoredRecords], place: int) -> None:
    """Which partition a name goes to depends on how many there are."""
    assert place_of(read, "billing", _HOME) == place

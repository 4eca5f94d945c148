"""The state beside a subscription's cursors is read as it was written, or refused by name."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.consumer.subscription.subscription_state import (
    StoredState,
    SubscriptionState,
    read_state,
)
from sequitur.errors import CursorDamagedError, CursorVersionError
from tests.support.examples import examples

_NUMBERS = st.integers(-1, (1 << 63) - 1)
_NAMES = st.text(max_size=12)
_STATES = st.builds(
    SubscriptionState,
    epoch=_NUMBERS,
    checkpoint=_NAMES,
    step=_NUMBERS,
    frontier_ms=st.integers(-(1 << 63), (1 << 63) - 1),
    transaction=_NUMBERS,
    transactions=_NAMES,
    lives=_NUMBERS,
    written_ms=_NUMBERS,
    sent=st.dictionaries(_NAMES, st.dictionaries(st.integers(0, 999), _NUMBERS, max_size=3)),
    topics=st.dictionaries(_NAMES, _NAMES, max_size=3),
    repeated=_NUMBERS,
)


@settings(max_examples=examples(1.0))
@given(state=_STATES, generation=_NUMBERS, group=_NAMES)
def test_what_was_written_is_read(state: SubscriptionState, generation: int, group: str) -> None:
    """Every field, and what stands beside them; names in any script."""
    stored = state.encode(generation=generation, group=group)
    assert read_state(stored) == StoredState(state, generation, group)
    assert SubscriptionState.decode(state.encode()) == state


@settings(max_examples=examples(2.0))
@given(state=_STATES, data=st.data())
def test_a_cut_or_a_changed_byte_is_refused(state: SubscriptionState, data: st.DataObject) -> None:
    """Step 17 with a digit changed is step 16, which is JSON as well."""
    stored = state.encode()
    place = data.draw(st.integers(0, len(stored) - 1))
    changed = bytearray(stored)
    changed[place] ^= data.draw(st.integers(1, 255))
    for damaged in (stored[:place], stored[place + 1 :], bytes(changed), stored + b" "):
        with pytest.raises(CursorDamagedError):
            SubscriptionState.decode(damaged)


def test_every_changed_byte_of_a_state_is_refused() -> None:
    stored = SubscriptionState(step=17, sent={"out": {0: 5}}, topics={"in": "abc"}).encode()
    for place in range(len(stored)):
        changed = bytearray(stored)
        changed[place] ^= 1
        with pytest.raises(CursorDamagedError, match=r"^the checksum of .* state is wrong$"):
            SubscriptionState.decode(bytes(changed))


def _stored(body: bytes) -> bytes:
    return b"%08x" % google_crc32c.value(body) + body


@pytest.mark.parametrize("other", [1, 3])
def test_another_format_is_refused_by_its_number(other: int) -> None:
    """Whatever else is in it: the user needs the version that wrote it."""
    with pytest.raises(CursorVersionError, match=f"has format {other}, this version reads 2: run"):
        SubscriptionState.decode(_stored(b'{"format":%d,"other":[]}' % other))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"format":2}', b'{"format":"1"}', b"\xff"])
def test_something_else_is_refused(body: bytes) -> None:
    with pytest.raises(CursorDamagedError, match="cannot be read"):
        SubscriptionState.decode(_stored(body))

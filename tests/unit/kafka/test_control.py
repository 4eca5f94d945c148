"""The control record: what is written is read again, and nothing else is taken for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.errors import ControlRecordError
from sequitur.kafka.control import BacklogState, ToDo, key_of, topic_of
from tests.support.values import replace

_AMOUNTS = st.none() | st.integers(0, 1 << 53)
_LIMITS = st.none() | st.integers(-1, 1 << 53)
_STATES = st.builds(
    BacklogState,
    issued_ms=st.integers(0, 1 << 53),
    valid_for_ms=st.integers(0, 1 << 40),
    policy=st.sampled_from([None, "producer_request_hold", "producer_exception"]),
    subscription=st.none() | st.text(),
    backlog_bytes=_AMOUNTS,
    limit_bytes=_LIMITS,
    age_s=st.none() | st.floats(0, 1e9),
    limit_s=st.none() | st.floats(-1, 1e9),
)
_HOLD_FIELDS: dict[str, Any] = {
    "issued_ms": 1_000_000,
    "valid_for_ms": 500,
    "policy": "producer_request_hold",
    "subscription": "billing",
    "backlog_bytes": 12 << 20,
    "limit_bytes": 10 << 20,
    "age_s": 90.0,
    "limit_s": 60.0,
}
_HOLD = BacklogState(**_HOLD_FIELDS)


@given(_STATES, st.text())
def test_what_is_written_is_read_again(state: BacklogState, topic: str) -> None:
    assert BacklogState.decode(topic, state.encode()) == state
    assert topic_of(key_of(topic)) == topic


def test_the_bytes_are_the_ones_that_others_write() -> None:
    """Compact JSON with a format; what is not given is absent."""
    assert key_of("orders") == json.dumps(["backlog", "orders"], separators=(",", ":")).encode()
    assert json.loads(BacklogState(issued_ms=1, valid_for_ms=2).encode()) == {
        "format": 1,
        "issued_ms": 1,
        "valid_for_ms": 2,
    }
    assert json.loads(_HOLD.encode()) == {"format": 1, **_HOLD_FIELDS}


@given(_STATES, st.data())
def test_a_cut_record_is_refused(state: BacklogState, data: st.DataObject) -> None:
    value = state.encode()
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    with pytest.raises(ControlRecordError, match="backlog of topic 'orders'"):
        BacklogState.decode("orders", cut)


@given(st.binary())
def test_any_bytes_are_a_state_or_an_error(value: bytes) -> None:
    try:
        topic_of(value)
        assert isinstance(BacklogState.decode("t", value), BacklogState)
    except ControlRecordError as error:
        assert error.record  # noqa: PT017 - that it raises is not what must hold


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `format`"),
        (b'{"format":2,"issued_ms":1,"valid_for_ms":1}', "format 2, expected 1"),
        (b'{"format":1,"valid_for_ms":1}', "missing required field `issued_ms`"),
        (b'{"format":1,"issued_ms":1,"valid_for_ms":-1}', "valid_for_ms"),
        (b'{"format":1,"issued_ms":1,"valid_for_ms":1,"policy":"stop"}', "'stop'"),
        (b'{"format":1,"issued_ms":1,"valid_for_ms":1,"backlog_bytes":"1"}', "backlog_bytes"),
        pytest.param(b'{"format":1,"deep":' + b"[" * 100_000, "recursion", id="deep"),
    ],
)
def test_a_record_that_says_something_else_is_refused(value: bytes, reason: str) -> None:
    with pytest.raises(ControlRecordError, match=reason) as refused:
        BacklogState.decode("orders", value)
    assert refused.value.record == "backlog of topic 'orders'"


def test_a_field_of_a_later_version_is_left_alone() -> None:
    """So that a newer checker can tell more."""
    value = json.dumps({**json.loads(_HOLD.encode()), "mood": "bad"}).encode()
    assert BacklogState.decode("t", value) == _HOLD


@pytest.mark.parametrize(
    "key",
    [
        *(None, b"", b"{", b"\xff", b"[]", b'"backlog"', b'["policies","t"]', b'["backlogs","t"]'),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_other_records_of_the_topic_are_none_of_ours(key: bytes | None) -> None:
    """Subscriptions, policies, or anything else."""
    assert topic_of(key) is None


@pytest.mark.parametrize("key", [b'["backlog"]', b'["backlog",null]', b'["backlog","a","b"]'])
def test_a_backlog_of_no_topic_is_refused(key: bytes) -> None:
    with pytest.raises(ControlRecordError) as refused:
        topic_of(key)
    assert refused.value.record == f"key {key!r}"
    assert str(refused.value) == f'control record, key {key!r}: expected ["backlog", TOPIC]'


@pytest.mark.parametrize(
    ("policy", "to_do"),
    [
        (None, ToDo.GO_ON),
        ("producer_request_hold", ToDo.HOLD),
        ("producer_exception", ToDo.REFUSE),
    ],
)
def test_a_policy_says_what_to_do(policy: Any, to_do: ToDo) -> None:
    assert replace(_HOLD, policy=policy).to_do is to_do


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({"backlog_bytes": 5, "limit_bytes": 10}, 0.5),
        ({"age_s": 30.0, "limit_s": 20.0}, 1.5),
        ({"backlog_bytes": 5, "limit_bytes": 10, "age_s": 9.0, "limit_s": 10.0}, 0.9),
        ({"backlog_bytes": 5, "limit_bytes": -1}, None),
        ({"backlog_bytes": 5, "limit_bytes": 0}, None),
        ({"backlog_bytes": 5}, None),
        ({}, None),
    ],
)
def test_proximity_is_the_larger_share(given: dict[str, Any], share: float | None) -> None:
    """Of size and age, where there is such a quota."""
    assert BacklogState(issued_ms=0, valid_for_ms=0, **given).proximity == share


def test_the_figures_are_for_people() -> None:
    """Whose backlog, how large, and the limits."""
    expected = (
        "the backlog of subscription 'billing' is over its quota: "
        "12 MiB of at most 10 MiB, the oldest event 90 s of at most 60 s"
    )
    assert _HOLD.figures == expected
    bare = BacklogState(issued_ms=0, valid_for_ms=0, backlog_bytes=7, limit_bytes=5)
    assert bare.figures == "the backlog is over its quota: 7 bytes of at most 5 bytes"
    units = replace(bare, backlog_bytes=1 << 10, limit_bytes=1023)
    assert units.figures == "the backlog is over its quota: 1 KiB of at most 1023 bytes"
    bare = BacklogState(issued_ms=0, valid_for_ms=0)
    assert bare.figures == "the backlog is over its quota: no figures given"

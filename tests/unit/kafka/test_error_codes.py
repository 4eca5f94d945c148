"""The one table of Kafka's error codes: every row, for every request."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import KafkaError

from sequitur.kafka.error_codes import (
    MEANINGS,
    NO_ERROR,
    Action,
    Answer,
    Request,
    action_of,
    codes_of,
    java_exception,
    meaning_of,
)
from tests.support.tree import ROOT

_TABLE = ROOT / "producer" / "kafka" / "error_codes.py"
_NEW_NAMES = {2, 6, 10, 17, 3}
"""Codes that librdkafka has under names that Kafka has given up."""
_NO_CODE = 12_345

_LEADER_MOVES = {5, 6}
_BROKER_AWAY = {7, 8, 13, 41, -156, -166, -185, -187, -193, -195}
_WIRE = {3, 5, 6, 7, 14, 15, 16, 19, 20, 41, 56}
_ADMIN = {*_LEADER_MOVES, *_BROKER_AWAY, 14, 15, 38, 56, 72, 74, 75, 78}
_PARTITION_MOVES = {9, 74, 75, 78}

_FOLLOWS: dict[Request, dict[Action, set[int]]] = {
    Request.LOGIN: {Action.FAIL: {31, 33, 34, 58}},
    Request.INIT_PRODUCER_ID: {
        Action.RETRY: {*_WIRE, 51},
        Action.FENCED: {47, 90},
        Action.GO_WITHOUT: {53},
    },
    Request.FIND_COORDINATOR: {Action.RETRY: {*_WIRE, 51}, Action.GO_WITHOUT: {53}},
    Request.DESCRIBE_CONFIGS: {Action.RETRY: {*_WIRE, 51}},
    Request.DESCRIBE_PRODUCERS: {
        Action.RETRY: {*_WIRE, *_PARTITION_MOVES, 51},
        Action.FAIL: {29, 31},
    },
    Request.READ: {Action.RETRY: {*_WIRE, *_PARTITION_MOVES, -1, 1}},
    Request.TOPICS: {Action.RETRY: {*_ADMIN, 9}, Action.RETRY_BRIEFLY: {3, -188, -190}},
    Request.TOPIC_IDS: {
        Action.RETRY: _ADMIN,
        Action.RETRY_BRIEFLY: {-188, -190},
        Action.GO_WITHOUT: {3, 29},
    },
    Request.TOPIC_CONFIGS: {
        Action.RETRY: _ADMIN,
        Action.RETRY_BRIEFLY: {3, -188, -190},
        Action.GO_WITHOUT: {29, 31},
    },
    Request.TOPIC_OF_JOB: {
        Action.RETRY: _ADMIN,
        Action.RETRY_BRIEFLY: {3, -188, -190},
        Action.DONE: {36},
    },
    Request.TOPIC_OF_DAEMON: {Action.RETRY: _BROKER_AWAY, Action.DONE: {36}},
    Request.WATERMARKS: {Action.RETRY: {3, 7, 56, *_LEADER_MOVES, *_PARTITION_MOVES}},
    Request.POSITION: {
        Action.RETRY: _ADMIN,
        Action.RETRY_BRIEFLY: {3, -188, -190},
        Action.GO_WITHOUT: {1, 30, -140},
    },
    Request.GROUPS: {
        Action.RETRY: {*_ADMIN, 16, -180},
        Action.RETRY_BRIEFLY: {-188, -190},
        Action.GO_WITHOUT: {69},
    },
    Request.TRANSACTION: {
        Action.RETRY: {*_ADMIN, 16, 51, -173, -177},
        Action.RETRY_BRIEFLY: {-188, -190},
        Action.FENCED: {47, 90, -144},
    },
    Request.SOURCE: {
        Action.RETRY: {3, *_LEADER_MOVES, *_PARTITION_MOVES, 7, 8, 13, 15, 16, 19, 56, 72}
    },
}
"""What follows from codes for each request; from all others, what `_OTHERWISE` has."""

_OTHERWISE = {
    Request.LOGIN: Action.RETRY,
    Request.DESCRIBE_PRODUCERS: Action.GO_WITHOUT,
}


@pytest.mark.promise("in-broker-answers-search")
@pytest.mark.parametrize("request_", Request, ids=lambda request: request.name)
def test_what_follows_from_each_code_for_each_request(request_: Request) -> None:
    """Row by row: a row that is changed for one request is changed for no other by accident."""
    expected = dict.fromkeys([*MEANINGS, _NO_CODE], _OTHERWISE.get(request_, Action.FAIL))
    expected[NO_ERROR] = Action.DONE
    for action, codes in _FOLLOWS[request_].items():
        expected.update(dict.fromkeys(codes, action))
    assert {code: action_of(request_, code) for code in expected} == expected


_ANSWERS: dict[Answer, set[int]] = {
    Answer.PERSISTED: {0},
    Answer.DUPLICATE: {46},
    Answer.RETRIABLE: {2, 19},
    Answer.OUT_OF_ORDER: {45},
    Answer.FORGOTTEN: {59},
    Answer.FENCED: {47, 90},
    Answer.TOO_LARGE: {10, 18, 87},
    Answer.MISDATED: {32},
    Answer.REFUSED: {17, 44},
    Answer.FORBIDDEN: {29, 31},
    Answer.UNFIT: {21, 35, 42, 43, 76},
}
_STALE = {3, 5, 6, 9, 13, 56, 74, 75}
_AGAIN_AND_AGAIN = {0, 3, 5, 6, 7, 9, 13, 14, 19, 20, 56, 74, 75, 89}
"""Codes that say nothing against the batch itself, however often they come."""


def test_what_each_code_says_of_a_batch() -> None:
    """A batch counts as not appended for those codes alone that come before the append."""
    expected = dict.fromkeys([*MEANINGS, _NO_CODE], Answer.UNKNOWN)
    for answer, codes in _ANSWERS.items():
        expected.update(dict.fromkeys(codes, answer))
    assert {code: meaning_of(code).answer for code in expected} == expected
    assert {code for code in expected if meaning_of(code).stale_metadata} == _STALE
    retried = {code for code in expected if expected[code] in {Answer.UNKNOWN, Answer.RETRIABLE}}
    assert {code for code in retried if not meaning_of(code).limited} == _AGAIN_AND_AGAIN & retried


def test_the_names_are_kafkas() -> None:
    """As librdkafka has them, whose own codes are below those of the brokers."""
    for code, row in MEANINGS.items():
        if code in {NO_ERROR, -1}:
            continue
        if code in _NEW_NAMES:
            assert not hasattr(KafkaError, row.name)
        elif hasattr(KafkaError, row.name):
            assert getattr(KafkaError, row.name) == code
        else:
            assert code > 0
            assert KafkaError(code).name() == row.name
    assert meaning_of(_NO_CODE).name == "error code 12345"


def test_javas_exceptions_have_the_names_of_their_codes() -> None:
    """But for one, which Java shares with what it finds out by itself."""
    named = {code: java_exception(code) for code in codes_of(Request.SOURCE, Action.RETRY)}
    assert named[6] == "NotLeaderOrFollowerException"
    assert named[7] == "TimeoutException"
    assert named[13] == "NetworkException"
    assert named[56] == "KafkaStorageException"


def test_nobody_else_judges_by_codes() -> None:
    """A module with codes of its own would be forgotten when the table changes."""
    judged = re.compile(r"KafkaError\.(?!_PARTITION_EOF)[A-Z_]+|for_code\(|\.retriable\b")
    found = [
        f"{source.relative_to(ROOT)}: {line.strip()}"
        for folder in ("producer", "consumer", "pipelines", "sequitur")
        for source in sorted((ROOT / folder).rglob("*.py"))
        if source != _TABLE
        for line in source.read_text().splitlines()
        if judged.search(line)
    ]
    assert found == []

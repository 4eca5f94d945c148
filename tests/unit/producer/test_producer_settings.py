"""Settings of the producer that cannot hold are refused, by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sequitur.producer import ProducerSettings, ProduceSettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_in_flight": 6}, "less than or equal to 5"),
        ({"max_in_flight": 0}, "greater than or equal to 1"),
        ({"name": "no spaces"}, "producer name 'no spaces'"),
        ({"compression": "brotli"}, "'none', 'gzip', 'snappy', 'lz4' or 'zstd'"),
        ({"linger": "2 s", "delivery_timeout": "1 s"}, "no event would ever be sent"),
        ({"retry_backoff": "2 s"}, "retry_backoff_max is smaller than retry_backoff"),
        ({"batch_size": 0}, "greater than 0"),
        ({"durability": "journal"}, "durability = journal: expected a directory in journal"),
        ({"durability": "journal-async"}, "expected a directory in journal"),
        ({"acks": 1}, "Extra inputs are not permitted"),
    ],
)
def test_what_would_break_a_promise_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ProducerSettings(**settings)


def test_no_flag_means_two_things() -> None:
    """The fields of the two sections are flags of one command, so no name is in both."""
    assert not set(ProducerSettings.model_fields) & set(ProduceSettings.model_fields)


@pytest.mark.parametrize(
    ("settings", "journaling"),
    [
        ({}, "none"),
        ({"journal": "somewhere"}, "journal"),
        ({"journal": "somewhere", "durability": "journal-async"}, "journal-async"),
        ({"journal": "somewhere", "durability": "none"}, "none"),
    ],
)
def test_a_directory_makes_events_durable(settings: dict[str, Any], journaling: str) -> None:
    """Unless it is said otherwise; without one there is no durable identity."""
    assert ProducerSettings(**settings).journaling == journaling

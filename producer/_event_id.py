"""The event id: a header that names each event once and for all.

The broker's own sequence numbers live in the batch and are gone for a reader; this id stays with
the event. It is the oracle of every test here, tells `sequitur verify` of gaps and repeats, and
lets the reorder job drop the repeats of producers that have no durable identity.

The header's value is ASCII, `<producer name>:<sequence>`: one header and not two, since each costs
about a tenth of a microsecond an event on the hot path, and readable, since people look at it in a
console consumer. The sequence counts the events of one producer from 0 in the order in which they
were accepted, over all topics and partitions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from producer._errors import ProducerError

EVENT_ID_HEADER: Final = "sequitur-event-id"
MAX_PRODUCER_NAME_LENGTH: Final = 200
_MAX_SEQUENCE: Final = 2**63 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9._~-]+", re.ASCII)
_VALUE: Final = re.compile(rb"([A-Za-z0-9._~-]{1,200}):(0|[1-9][0-9]{0,18})")


class MalformedEventIdError(ProducerError, ValueError):
    """A header value that is no event id, or a producer name that cannot be part of one."""


@dataclass(frozen=True, slots=True, order=True)
class EventId:
    """Which producer accepted the event, and as its how-many-th.

    Attributes:
        producer: The producer's name.
        sequence: Counts that producer's events from 0; at most 2^63 - 1.
    """

    producer: str
    sequence: int

    def encode(self) -> bytes:
        """The header's value."""
        return encode_event_id(self.producer, self.sequence)


def check_producer_name(name: str) -> str:
    """Return `name`.

    Raises:
        MalformedEventIdError: It is empty, too long, or has characters that an event id cannot
        hold.
    """
    if len(name) > MAX_PRODUCER_NAME_LENGTH or _NAME.fullmatch(name) is None:
        raise MalformedEventIdError(
            f"producer name {name!r}: expected 1 to {MAX_PRODUCER_NAME_LENGTH} of the characters "
            "A-Z a-z 0-9 . _ ~ -"
        )
    return name


def encode_event_id(producer: str, sequence: int) -> bytes:
    """The header's value for the event that `producer` accepted as its `sequence`-th, from 0."""
    return b"%b:%d" % (producer.encode("ascii"), sequence)


def parse_event_id(value: bytes) -> EventId:
    """Read a header's value.

    Raises:
        MalformedEventIdError: `value` is not `<producer name>:<sequence>`.
    """
    match = _VALUE.fullmatch(value)
    if match is None or int(match[2]) > _MAX_SEQUENCE:
        raise MalformedEventIdError(f"{value!r} is no event id: expected <producer>:<sequence>")
    return EventId(match[1].decode("ascii"), int(match[2]))

"""Event ids, and the timestamps of records.

The event id is a header that names each event once and for all.

The broker's own sequence numbers live in the batch and are gone for a reader; this id stays with
the event. It is the oracle of every test here, tells `sequitur verify` of gaps and duplicates, and
lets the reorder job drop the duplicates of producers that have no durable identity.

The header's value is ASCII, `<producer name>~<generation>:<sequence>`: one header and not two,
since each costs about a tenth of a microsecond an event on the hot path, and readable, since people
look at it in a console consumer.

The sequence counts the events of one producer from 0 in the order in which they were accepted, over
all topics and partitions, and over all lives of a producer with a journal. The generation, eight
random hexadecimal digits, is another in each life: two processes that hold copies of one journal
give the same sequences, and never the same ids. A producer without a journal counts from 0 in each
life, so each of its lives is a producer of its own, whose name is `<name>~~<random digits>`: two
tildes, and no generation.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from sequitur.errors import MalformedEventIdError

EVENT_ID_HEADER: Final = "sequitur-event-id"
"""The header in which each record of the producer has its event id."""
MAX_PRODUCER_NAME_LENGTH: Final = 200
UNNAMED_PREFIX: Final = "sequitur"
"""The beginning of the name of a producer that was not given a name."""
_MAX_ID_NAME_LENGTH: Final = MAX_PRODUCER_NAME_LENGTH + 10
_MAX_SEQUENCE: Final = 2**63 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9._~-]+", re.ASCII)
_VALUE: Final = re.compile(rb"([A-Za-z0-9._~-]{1,%d}):(0|[1-9][0-9]{0,18})" % _MAX_ID_NAME_LENGTH)
_GENERATION: Final = re.compile(r"(.*[^~])~([0-9a-f]{8})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class EventId:
    """Which producer accepted the event, and under which sequence.

    Attributes:
        producer: The producer's name. Without a journal, `<name>~~<random digits>` for each run.
        sequence: Number of the event among that producer's, from 0 to 2^63 - 1, over all
            generations.
        generation: Which life of the journal the producer is in. Empty without a journal.
    """

    producer: str
    sequence: int
    generation: str = ""

    def encode(self) -> bytes:
        """Return the header's value."""
        return encode_event_id(self.producer, self.sequence, self.generation)


def new_generation() -> str:
    """Return a random generation. Two lives have the same one once in 2^32."""
    return secrets.token_hex(4)


def name_in_ids(producer: str, generation: str) -> str:
    """Return the part before the colon."""
    return f"{producer}~{generation}" if generation else producer


def name_of_a_life(producer: str) -> str:
    """Return the name of one life of a producer without a journal."""
    return f"{producer}~~{new_generation()}"


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
    if name.endswith("~") or _GENERATION.fullmatch(name) is not None:
        raise MalformedEventIdError(
            f"producer name {name!r}: it ends like a generation. Choose a name that does not end "
            "in ~, or in ~ and eight hexadecimal digits"
        )
    return name


def encode_event_id(producer: str, sequence: int, generation: str = "") -> bytes:
    """Return the header's value for the `sequence`-th event of `producer`, counted from 0."""
    return b"%b:%d" % (name_in_ids(producer, generation).encode("ascii"), sequence)


def parse_event_id(value: bytes) -> EventId:
    """Read a header's value.

    ::

        event_id = parse_event_id(b"orders~5f2a91c0:17")
        assert (event_id.producer, event_id.sequence) == ("orders", 17)

    Raises:
        MalformedEventIdError: `value` is not `<producer name>~<generation>:<sequence>`, where the
            generation may be left out.
    """
    match = _VALUE.fullmatch(value)
    if match is None or int(match[2]) > _MAX_SEQUENCE:
        raise MalformedEventIdError(f"{value!r} is not an event id: expected <producer>:<sequence>")
    name = match[1].decode("ascii")
    lived = _GENERATION.fullmatch(name)
    if lived is None:
        return EventId(name, int(match[2]))
    return EventId(lived[1], int(match[2]), lived[2])


_RANGE: Final = re.compile(r"should be within \[(-?\d+), (-?\d+)\]")
_JAVA_LONGS: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class TimestampRange:
    """The timestamps that a broker takes, as it says of a record that it refuses for its own.

    Kafka's LogValidator names the range: from the broker's time less the topic's
    `message.timestamp.before.max.ms`, to its time and `message.timestamp.after.max.ms`.
    """

    first_ms: int  # the oldest, epoch milliseconds
    last_ms: int

    def broker_ms(self, after_max_ms: int) -> int:
        """Return the broker's time, epoch milliseconds."""
        return (self.last_ms - after_max_ms) % _JAVA_LONGS


def timestamp_range(text: str) -> TimestampRange | None:
    """Return the range in a broker's text, None if the text has none."""
    found = _RANGE.search(text)
    return None if found is None else TimestampRange(int(found[1]), int(found[2]))

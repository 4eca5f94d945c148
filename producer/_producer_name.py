"""The name of a producer without a given name: its journal's, or a new one, unique to the host.

A name is the first half of each event's id, so two producers of one name give ids that look like
duplicates. A journal is created once and may move to another host, as a volume does whose container
is started elsewhere: so the journal's name is used if there is one, and only a new journal gets a
new name. The name has the host in it for people, and random digits since hosts are cloned and all
called localhost.
"""

from __future__ import annotations

import re
import secrets
import socket
from typing import TYPE_CHECKING, Final

from sequitur.kafka.records import UNNAMED_PREFIX, check_producer_name
from sequitur.producer.journal.frames import (
    PREAMBLE_LENGTH,
    READ_VERSIONS,
    Head,
    decode_frame,
    decode_preamble,
    segment_seed,
)
from sequitur.producer.journal.scan import segment_name, segment_numbers

if TYPE_CHECKING:
    from pathlib import Path

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9.-]+", re.ASCII)
_MAX_HOST_LENGTH: Final = 63


def unnamed_producer(journal: Path | None, host: str | None = None) -> str:
    """Return the name of a producer without a given name."""
    if journal is None:
        return UNNAMED_PREFIX
    known = journal_producer(journal)
    if known is not None:
        return known
    own = _NO_NAME.sub("-", host if host is not None else socket.gethostname())
    own = own[:_MAX_HOST_LENGTH].strip("-.") or "host"
    return check_producer_name(f"{UNNAMED_PREFIX}-{own}-{secrets.token_hex(4)}")


def journal_producer(journal: Path) -> str | None:
    """Return the producer's name in a journal; None when there is no journal, or it is damaged.

    Takes no lock. Opening a journal that is damaged says what is wrong with it.
    """
    try:
        names = [path.name for path in journal.iterdir()]
    except OSError:
        return None
    for segment in reversed(segment_numbers(names)):
        try:
            data = (journal / segment_name(segment)).read_bytes()
        except OSError:
            continue
        preamble = decode_preamble(data[:PREAMBLE_LENGTH])
        if preamble is None or preamble[0] not in READ_VERSIONS or preamble[1] != segment:
            continue
        placed = decode_frame(data, PREAMBLE_LENGTH, segment_seed(segment))
        if placed is not None and isinstance(placed.frame, Head):
            return placed.frame.producer
    return None

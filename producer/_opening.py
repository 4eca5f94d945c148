"""What a life of a producer begins with: its name, its journal, and its identity.

If the settings give no name, it is the journal's, or a new one that is unique to the host. A name
is the first half of each event's id, so two producers of one name give ids that look like
duplicates.
A journal is created once and may move to another host, as a volume does whose container is started
elsewhere. So the name in a journal is used if there is one, and only a new journal gets a new name.
The name has the host in it for people. It has random digits since hosts are cloned and all called
localhost.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.errors import RetriableError
from sequitur.kafka.records import UNNAMED_PREFIX, check_producer_name
from sequitur.producer.delivery.routes import until_answered
from sequitur.producer.journal.frames import (
    FORMAT_VERSION,
    PREAMBLE_LENGTH,
    Head,
    Renewal,
    decode_frame,
    decode_preamble,
    segment_name,
    segment_numbers,
    segment_seed,
)
from sequitur.producer.journal.journal import Journal
from sequitur.producer.journal.segments import JournalLimits

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.journal.state import Recovered

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9.-]+", re.ASCII)
_MAX_HOST_LENGTH: Final = 63
_REACH_S: Final = 2.0
_log = Logger(__name__)


def unnamed_producer(journal: Path | None, host: str | None = None) -> str:
    """Return the name of a producer whose settings have none."""
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
        if preamble is None or preamble[0] != FORMAT_VERSION or preamble[1] != segment:
            continue
        placed = decode_frame(data, PREAMBLE_LENGTH, segment_seed(segment))
        if placed is not None and isinstance(placed.frame, Head):
            return placed.frame.producer
    return None


class JournalOpening:
    """Takes over the journal of a producer, and gives it back if the start comes to nothing.

    Both are done in one thread: no call that is cancelled, and no event loop that ends, leaves the
    journal locked.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sequitur-opening")
        self._opening: Future[Journal] | None = None
        self._closing: Future[None] | None = None

    async def open(self, directory: Path, name: str, *, limit_bytes: int) -> Journal:
        """Open it. Cancelling this call does not stop it."""
        limits = JournalLimits.within(limit_bytes)
        opening = self._thread.submit(Journal.open, directory, producer=name, limits=limits)
        self._opening = opening
        return await asyncio.shield(asyncio.wrap_future(opening))

    def take(self) -> None:
        """Leave the journal to who closes it from now on."""
        self._opening = None
        self._thread.shutdown(wait=False)

    def let_go(self) -> None:
        """Have it closed, unless it is taken; if it is still being opened, once it is."""
        if self._closing is None and self._opening is not None:
            self._closing = self._thread.submit(_close_opened, self._opening)
            self._thread.shutdown(wait=False)

    async def closed(self) -> None:
        """Wait until a journal that was let go is unlocked."""
        if self._closing is not None:
            await asyncio.shield(asyncio.wrap_future(self._closing))


def _close_opened(opening: Future[Journal]) -> None:
    if opening.exception() is None:
        opening.result().close()


async def acquire_identity(
    identities: Identities,
    journal: Journal | None,
    former: Recovered,
    settings: ProducerSettings,
    *,
    random: Random,
) -> None:
    """Learn the producer id and epoch of this life, and note them in the journal.

    With a journal that knows its topics they may come later, too: after two seconds without an
    answer this returns without them.
    """
    if former.partitions:
        try:
            async with asyncio.timeout(_REACH_S):
                await identities.known()
        except (RetriableError, TimeoutError) as error:
            _log.warning("no broker answers yet. The journal takes events", reason=str(error))
            return
    else:
        await until_answered(identities.known, settings, random)
    if journal is not None:
        journal.append([Renewal(identities.current, cluster_id=identities.cluster_id)])
        await asyncio.to_thread(journal.sync)

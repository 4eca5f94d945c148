"""What a producer does before it takes events: its journal, and its identity."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.errors import JournalError, RetriableError
from sequitur.producer.delivery.routes import until_answered
from sequitur.producer.journal.frames import Renewal
from sequitur.producer.journal.journal import Journal
from sequitur.producer.journal.segments import JournalLimits

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.journal.state import Recovered

_REACH_S: Final = 2.0

_log = Logger(__name__)


class JournalOpening:
    """Takes over the journal of a producer, in a thread: it cannot be stopped when nobody waits."""

    def __init__(self) -> None:
        self._unclaimed: asyncio.Task[None] | None = None

    async def open(self, directory: Path, name: str, *, limit_bytes: int) -> Journal:
        """Open it; if this call is cancelled, it is closed as soon as it is open."""
        limits = JournalLimits.within(limit_bytes)
        opening = asyncio.ensure_future(
            asyncio.to_thread(Journal.open, directory, producer=name, limits=limits)
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._unclaimed = asyncio.create_task(_close_unclaimed(opening))
            raise

    async def closed(self, limit_s: float) -> None:
        """Wait until a journal that nobody took is unlocked, at most for so long."""
        if self._unclaimed is not None:
            await asyncio.wait((self._unclaimed,), timeout=limit_s)


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
            await asyncio.wait_for(identities.known(), _REACH_S)
        except (RetriableError, TimeoutError) as error:
            _log.warning("no broker answers yet; the journal takes events", reason=str(error))
            return
    else:
        await until_answered(identities.known, settings, random)
    if journal is not None:
        journal.append([Renewal(identities.current, cluster_id=identities.cluster_id)])
        await asyncio.to_thread(journal.sync)


async def _close_unclaimed(opening: asyncio.Future[Journal]) -> None:
    """Close a journal that was opened after its caller was cancelled."""
    with contextlib.suppress(JournalError):
        journal = await opening
        await asyncio.to_thread(journal.close)

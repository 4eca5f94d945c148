"""The identity of a producer, its producer id and epoch: acquired once a life, and renewed.

A producer with a journal has a name that outlives it, and its identity belongs to the name: the
transaction coordinator keeps one producer id for each transactional id, and gives each caller of
InitProducerId its next epoch. So no two lives have the same identity, whatever their disks hold:
not one whose journal was restored from a copy, nor two hosts on copies of one journal. Where a
newer epoch has written, the broker refuses the older. A renewal names the identity that it renews,
so that the coordinator refuses it if another process has taken the name over (KIP-360). No
transaction is ever begun.

Without the right to the transactional id, and without a journal, each life gets a producer id that
no other process has, and raises its epoch by itself.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.errors import NameNotAllowedError, WrongClusterError
from sequitur.kafka.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.kafka.wire import Wire
    from sequitur.producer.journal.state import Recovered

_TRANSACTIONAL_ID_PREFIX: Final = "sequitur.producer."

_log = Logger(__name__)


class Identities:
    """Acquire identities; `current` is the newest."""

    def __init__(
        self, wire: Wire, name: str | None, former: Recovered, *, accept_new_cluster: bool
    ) -> None:
        self.current = Identity.provisional()
        self.cluster_id = former.cluster_id
        self._wire = wire
        self._name = None if name is None else _TRANSACTIONAL_ID_PREFIX + name
        self._former_cluster = former.cluster_id
        self._accept_new_cluster = accept_new_cluster
        self._used = list(_identities_in(former))
        self._are_ours: dict[int, int] | None = {}
        self._lock = asyncio.Lock()

    async def known(self) -> Identity:
        """Return the current identity; acquire it from the brokers if there is none yet."""
        if self.current.is_provisional:
            async with self._lock:
                if self.current.is_provisional:
                    await self._wire.start()
                    is_new_cluster = self._check_cluster()
                    identity = await self._ask(None)
                    self._check_former(identity, is_new_cluster=is_new_cluster)
                    while any(
                        used.producer_id == identity.producer_id and used.epoch >= identity.epoch
                        for used in self._used
                    ):
                        # A recreated cluster gives producer ids out again.
                        identity = await self._ask(None)
                    self.current = identity
        return self.current

    def still_ours(self, identity: Identity) -> bool:
        """Return whether an identity of this life, or of a former one, is this producer's alone.

        If it is, the broker's answers about it are about batches of this producer, and these may
        be sent under it.
        """
        return self._are_ours is None or (
            identity.epoch <= self._are_ours.get(identity.producer_id, -1)
        )

    async def newer_than(self, identity: Identity, *, fenced: bool) -> Identity:
        """Return an identity that a partition never had."""
        async with self._lock:
            stale = self.current == identity or (
                fenced and self._name is None and self.current.producer_id == identity.producer_id
            )
            if stale:
                bumped = None if fenced or self._name is not None else identity.bumped()
                self.current = bumped or await self._ask(identity)
                if self._are_ours and self.current.producer_id in self._are_ours:
                    self._are_ours[self.current.producer_id] = self.current.epoch
            return self.current

    def _check_cluster(self) -> bool:
        """Return whether this is another cluster than the journal's."""
        found = self._wire.cluster_id or ""
        former = self._former_cluster
        is_new = bool(former and found) and former != found
        if is_new and not self._accept_new_cluster:
            raise WrongClusterError(former, found)
        self.cluster_id = found or former
        return is_new

    async def _ask(self, held: Identity | None) -> Identity:
        if self._name is not None:
            try:
                return await self._wire.claim(self._name, held)
            except NameNotAllowedError as error:
                _log.warning(
                    "two producers of this name would not be noticed: without the right to its "
                    "transactional id each life has a producer id of its own",
                    reason=str(error),
                )
                self._name = None
        return await self._wire.new_producer_id()

    def _check_former(self, identity: Identity, *, is_new_cluster: bool) -> None:
        if is_new_cluster:
            self._are_ours = {}
        elif self._name is None:
            self._are_ours = None  # all are: on the same cluster no other producer gets them
        else:
            newest = max(
                (i.epoch for i in self._used if i.producer_id == identity.producer_id), default=-1
            )
            # If the epoch does not follow the former ones, the coordinator has lost its state, or
            # the cluster was recreated under the same id and gives producer ids out again.
            follows = identity.epoch > newest
            self._are_ours = {identity.producer_id: identity.epoch} if follows else {}


def _identities_in(former: Recovered) -> Iterator[Identity]:
    """Yield all identities that a journal knows."""
    for state in former.partitions.values():
        yield Identity(state.producer_id, state.epoch)
    for batch in chain.from_iterable(former.unacked.values()):
        yield Identity(batch.producer_id, batch.epoch)
    if former.identity is not None:
        yield former.identity

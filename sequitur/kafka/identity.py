"""Producer id and epoch, by which brokers tell producers, and lives of one producer, apart."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

MAX_EPOCH: Final = 2**15 - 1
_NO_PRODUCER: Final = -1


class Identity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Producer id and epoch; a higher epoch of an id fences the lower ones.

    Journals have it as it stands here.
    """

    producer_id: int
    epoch: int

    @classmethod
    def provisional(cls) -> Identity:
        """Return a placeholder for use until a broker gives an identity; different in each life.

        Batches get their numbers under it, so that a journal can keep them, and are never sent
        under it.
        """
        return cls(_NO_PRODUCER - 1 - secrets.randbits(62), 0)

    @property
    def is_provisional(self) -> bool:
        """Whether it is a placeholder that no broker has assigned."""
        return self.producer_id < _NO_PRODUCER

    def bumped(self) -> Identity | None:
        """Return the next epoch of this producer id; None after the last one."""
        return None if self.epoch == MAX_EPOCH else Identity(self.producer_id, self.epoch + 1)

"""Who has a subscription: its owner's claim, and what others may conclude from that.

A claim is a record beside the cursors. A process that becomes the owner writes one. It writes the
claim again with all that is stored, and at least three times in each *lease*. The lease says who
may try to become the owner. Only the transactional id and the claim say who may write.

- **Others** take an owner for gone if its claim has not changed for a lease, by their own monotonic
  clock. They compare a claim with the one that they have read before, and never compare two clocks.
  A process of this machine that has ended is known to have ended.
- **The owner** uses a clock that runs on while the machine sleeps. If it has not written its claim
  for a lease, somebody else may have the subscription. It hands out nothing before it has written
  its claim.

A command holds nothing: its claim has no lease. The claim of an owner that has ended has none
either.
"""

from __future__ import annotations

import enum
import json
import re
import time
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from sequitur.base.process import ProcessIdentity
from sequitur.base.stored import dump, load
from sequitur.consumer.subscription.codec import OTHER_VERSION
from sequitur.errors import CursorDamagedError, CursorVersionError, StateFormatError

if TYPE_CHECKING:
    from collections.abc import Callable


LEASE_S: Final = 15.0
LONGEST_LEASE_S: Final = 3_600.0
RENEWALS: Final = 3
"""An owner writes its claim so often within a lease."""
_LOOKS: Final = 10
"""Others look at the claim so often within a lease."""
_CLAIMS_FORMAT: Final = 2
"""The first form, the life alone, was in no release. It is refused."""
_FIRST_FORM: Final = re.compile(rb"[0-9a-f]{32}")


class Claim(msgspec.Struct, frozen=True, tag_field="format", tag=_CLAIMS_FORMAT):
    life: str  # unique name of this hold on the subscription
    count: int  # how often this life has written it
    lease_ms: int  # how long the claim may stay unchanged; 0: nobody holds the subscription
    # when an owner was last there, by its wall clock; None if unknown
    seen_ms: int | None
    owner: ProcessIdentity  # the process

    @classmethod
    def begin(cls, lease_s: float, before: Claim | None) -> Self:
        seen_ms = None if before is None else before.seen_ms
        own = ProcessIdentity.own()
        return cls(uuid.uuid4().hex, 0, round(lease_s * 1000), seen_ms, own)

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000

    def renewed(self, now_ms: int) -> Claim:
        seen_ms = now_ms if self.lease_ms else self.seen_ms
        return replace(self, count=self.count + 1, seen_ms=seen_ms)

    def released(self, now_ms: int) -> Claim:
        return replace(self.renewed(now_ms), lease_ms=0)

    def encode(self) -> bytes:
        return json.dumps(dump(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes, subscription: str) -> Self:
        if _FIRST_FORM.fullmatch(value):
            raise CursorVersionError(
                f"the claim of subscription {subscription!r} has the first form, this version "
                f"reads {_CLAIMS_FORMAT}: {OTHER_VERSION}"
            )
        try:
            document = json.loads(value)
            version = document["format"]
            if version == _CLAIMS_FORMAT:
                claim = load(cls, document)
                longest_ms = round(LONGEST_LEASE_S * 1000)
                return replace(claim, lease_ms=min(claim.lease_ms, longest_ms))
        except (ValueError, TypeError, KeyError, RecursionError, StateFormatError) as error:
            raise CursorDamagedError(
                f"the claim of subscription {subscription!r} cannot be read: {value[:80]!r}"
            ) from error
        raise CursorVersionError(
            f"the claim of subscription {subscription!r} has format {version}, this version "
            f"reads {_CLAIMS_FORMAT}: {OTHER_VERSION}"
        )


class Hold(enum.Enum):
    FREE = enum.auto()
    """It has no owner, or the owner has let its lease pass."""
    YOUNG = enum.auto()
    """It had an owner within the lease."""
    UNDECIDED = enum.auto()
    """Its claim has not changed, but was seen for less than a lease."""


class ClaimWatch:
    """Judges claims by what this process has seen of them. One thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def judge(self, subscription: str, claim: Claim | None) -> Hold:
        if claim is None or not claim.lease_ms or claim.owner.is_gone():
            self._seen.pop(subscription, None)
            return Hold.FREE
        written, now_s = (claim.life, claim.count), self._clock()
        seen = self._seen.get(subscription)
        if seen is None or seen.written != written:
            seen = self._seen[subscription] = _Seen(written, now_s, seen is not None)
        if now_s - seen.since_s >= claim.lease_s:
            return Hold.FREE
        return Hold.YOUNG if seen.has_changed else Hold.UNDECIDED


class _Seen(NamedTuple):
    written: tuple[str, int]
    since_s: float
    has_changed: bool


def await_free(
    look: Callable[[], tuple[Hold, Claim | None]],
    *,
    patiently: bool,
    wait: Callable[[float], object] = time.sleep,
) -> Claim | None:
    """Look until it is known whether a subscription has an owner; return the owner's claim."""
    while True:
        hold, claim = look()
        if hold is Hold.FREE or claim is None:
            return None
        if hold is Hold.YOUNG and not patiently:
            return claim
        wait((claim.lease_s or LEASE_S) / _LOOKS)


def _boot_time() -> float:
    """Return seconds by a clock that runs on while the machine sleeps, if there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HeldLease:
    def __init__(self, lease_s: float, clock: Callable[[], float] = _boot_time) -> None:
        self.lease_s = lease_s
        self.now_s = clock
        self._renewed_s = clock()

    @property
    def is_over(self) -> bool:
        """Whether others may consider this owner gone."""
        return bool(self.lease_s) and self.now_s() - self._renewed_s >= self.lease_s

    @property
    def due_in_s(self) -> float:
        """Seconds until the claim has to be written again; negative if that is late."""
        return self._renewed_s + self.lease_s / RENEWALS - self.now_s()

    def renewed(self, begun_s: float) -> None:
        """Note that the claim is written. Nobody can have seen it before the write began."""
        self._renewed_s = max(self._renewed_s, begun_s)

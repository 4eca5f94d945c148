"""Who has a subscription, by claims that are read and by clocks that tests move."""

from __future__ import annotations

import json

import pytest

from sequitur.base.process import ProcessIdentity
from sequitur.consumer.subscription.claims import Claim, ClaimWatch, HeldLease, Hold, await_free
from sequitur.errors import CursorDamagedError, CursorVersionError
from tests.support.values import replace

_LEASE_S = 15.0
_ELSEWHERE = ProcessIdentity("another", 7, "another", 7)
_FIRST = b"0123456789abcdef0123456789abcdef"


class _Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def _claim(count: int = 1, **fields: object) -> Claim:
    claim = Claim("a", count, int(_LEASE_S * 1000), 5, _ELSEWHERE)
    return replace(claim, **fields)


def test_what_is_written_is_read_back() -> None:
    """Other forms are refused by name; the first was the life alone."""
    claim = Claim.begin(_LEASE_S, None).renewed(9)
    assert Claim.decode(claim.encode(), "s") == claim
    assert (claim.count, claim.lease_ms, claim.seen_ms) == (1, 15_000, 9)
    with pytest.raises(CursorVersionError, match=r"'s' has the first form, .* reads 2: run the v"):
        Claim.decode(_FIRST, "s")
    newer = json.dumps({**json.loads(claim.encode()), "format": 3}).encode()
    with pytest.raises(CursorVersionError, match=r"claim of subscription 's' has format 3, .* 2"):
        Claim.decode(newer, "s")
    for value in (b"", b"{", b"[]", b"{}", b'{"format":2}', _FIRST + b"0"):
        with pytest.raises(CursorDamagedError, match="'s' cannot be read"):
            Claim.decode(value, "s")


def test_a_claim_tells_when_an_owner_was_there() -> None:
    """Whoever holds nothing, as a command, leaves that as it was."""
    left = Claim.begin(_LEASE_S, None).renewed(9).released(12)
    assert (left.lease_ms, left.seen_ms) == (0, 12)
    assert Claim.begin(0, left).renewed(99).seen_ms == 12


@pytest.mark.promise("sub-subscription-opened-process")
@pytest.mark.parametrize("moves", [False, True])
def test_an_owner_is_gone_once_its_claim_stands_still_for_a_lease(*, moves: bool) -> None:
    """By the watcher's clock; its wall clock, and ours, say nothing."""
    clock = _Clock()
    watch = ClaimWatch(clock)
    claim, alive = _claim(), Hold.UNDECIDED
    assert watch.judge("s", claim) is alive
    if moves:
        clock.now_s += 999  # whoever watches may have been paused, and it has renewed meanwhile
        claim, alive = claim.renewed(6), Hold.YOUNG
        assert watch.judge("s", claim) is alive
    clock.now_s += _LEASE_S - 0.001
    assert watch.judge("s", claim) is alive
    clock.now_s += 0.001
    assert watch.judge("s", claim) is Hold.FREE
    assert watch.judge("s", claim.renewed(7)) is Hold.YOUNG
    assert watch.judge("other", claim) is Hold.UNDECIDED


@pytest.mark.promise("sub-subscription-opened-process")
@pytest.mark.parametrize(
    "claim",
    [
        None,
        _claim(lease_ms=0),
        _claim(owner=replace(ProcessIdentity.own(), started=-1)),
        _claim(owner=replace(ProcessIdentity.own(), process=2**22 + 1)),
    ],
    ids=["none", "released", "its number is another process's", "a process that has ended"],
)
def test_who_has_nothing_is_known_at_once(claim: Claim | None) -> None:
    assert ClaimWatch(_Clock()).judge("s", claim) is Hold.FREE


def _awaited(*claims: Claim | None, patiently: bool) -> tuple[Claim | None, float]:
    """Return what is awaited, and for how long; of the claims the last one stays."""
    clock, left = _Clock(), list(claims)
    watch = ClaimWatch(clock)

    def look() -> tuple[Hold, Claim | None]:
        claim = left[0] if len(left) == 1 else left.pop(0)
        return watch.judge("s", claim), claim

    def wait(seconds: float) -> None:
        clock.now_s += seconds

    return await_free(look, patiently=patiently, wait=wait), clock.now_s - 1_000


@pytest.mark.parametrize("patiently", [False, True])
def test_one_that_died_elsewhere_is_waited_for_as_long_as_its_lease(*, patiently: bool) -> None:
    """It looks like one that lives until then."""
    found, waited_s = _awaited(_claim(), patiently=patiently)
    assert found is None
    assert waited_s == pytest.approx(_LEASE_S)


@pytest.mark.promise("sub-subscription-opened-process")
def test_one_that_renews_is_refused_at_once_or_waited_for() -> None:
    renewals = [_claim(count) for count in range(1, 60)]
    found, waited_s = _awaited(*renewals, patiently=False)
    assert found == renewals[1]
    assert waited_s < _LEASE_S / 3
    found, waited_s = _awaited(*renewals, renewals[-1].released(1), patiently=True)
    assert found is None
    assert waited_s > 5 * _LEASE_S


@pytest.mark.promise("sub-owner-subscription-idle")
def test_an_owner_knows_when_others_may_take_it_for_gone() -> None:
    """From the beginning of its last write on: nobody has seen it before."""
    clock = _Clock()
    lease = HeldLease(_LEASE_S, clock)
    assert lease.due_in_s == pytest.approx(5)
    clock.now_s += 5
    begun_s = lease.now_s()
    clock.now_s += 9.9
    lease.renewed(begun_s)
    clock.now_s += 5
    is_over_before = lease.is_over
    clock.now_s += 0.1
    assert (is_over_before, lease.is_over) == (False, True)
    assert lease.due_in_s == pytest.approx(-10)
    assert not HeldLease(0, clock).is_over

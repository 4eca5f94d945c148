"""The acker: XOR values, and what they say of trees; messages in one lot or in several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import acker as bench
from sequitur.consumer.topology.settling.acker import Acker, AckFlag, acker_of, columns, combined

_STID1, _STID2, _TID1 = 0b1010, 0b1011, 0b1100
_INIT, _FAILED, _HELD = AckFlag.INIT, AckFlag.FAILED, AckFlag.HELD


def _add(acker: Acker, *messages: tuple[int, int, int]) -> None:
    roots, values, flags = zip(*messages, strict=True)
    acker.add(np.array(roots, np.uint64), np.array(values, np.uint64), np.array(flags, np.uint8))
    len(acker)  # what is buffered is merged


def _values(acker: Acker) -> list[int]:
    values: list[int] = acker._values.tolist()
    return values


def _flags_of_unfinished(acker: Acker) -> dict[int, int]:
    trees = acker.outcomes()
    return dict(zip(trees.unfinished.tolist(), trees.flags.tolist(), strict=True))


def test_the_worked_example_comes_to_zero() -> None:
    """A tuple anchored to two roots: both values end at 0, whichever ack comes first."""
    acker = Acker()
    _add(acker, (1, _STID1, _INIT), (2, _STID2, _INIT))
    _add(acker, (1, _STID1 ^ _TID1, 0), (2, _STID2 ^ _TID1, 0))
    assert _values(acker) == [0b1100, 0b1100]
    assert _flags_of_unfinished(acker) == {1: _INIT, 2: _INIT}
    _add(acker, (1, _TID1, 0), (2, _TID1, 0))
    assert _values(acker) == [0, 0]
    assert (acker.outcomes().acked, _flags_of_unfinished(acker)) == (2, {})


def test_the_worked_example_with_emits_told_on_the_way() -> None:
    """0110 and 0111 once the joined tuple is emitted, 1100 and 1100 once the spout's are acked."""
    acker = Acker()
    _add(acker, (1, _STID1, _INIT), (2, _STID2, _INIT))
    seen = []
    for first, second in [(_TID1, _TID1), (_STID1, _STID2), (_TID1, _TID1)]:
        _add(acker, (1, first, 0), (2, second, 0))
        seen.append(_values(acker))
    assert seen == [[0b0110, 0b0111], [0b1100, 0b1100], [0b0000, 0b0000]]


@pytest.mark.promise("process-acks-come-order")
def test_an_ack_may_come_before_the_init() -> None:
    acker = Acker()
    _add(acker, (1, 77, 0))
    assert (acker.outcomes().acked, _flags_of_unfinished(acker)) == (0, {1: 0})
    _add(acker, (1, 77, _INIT))
    assert (acker.outcomes().acked, _flags_of_unfinished(acker)) == (1, {})


def test_a_root_without_edges_is_done_at_once() -> None:
    """Nobody reads the spout's tuple."""
    acker = Acker()
    _add(acker, (1, 0, _INIT))
    assert (acker.outcomes().acked, _flags_of_unfinished(acker)) == (1, {})


@pytest.mark.promise("process-ack-comes-tree")
def test_a_failure_stays() -> None:
    """Also where it came first, and where all edges are acked behind it."""
    acker = Acker()
    _add(acker, (1, 0, _FAILED))
    assert (acker.outcomes().acked, _flags_of_unfinished(acker)) == (0, {1: _FAILED})
    _add(acker, (1, 5, _INIT), (1, 5, 0))
    assert (acker.outcomes().acked, _flags_of_unfinished(acker)) == (0, {1: _INIT | _FAILED})


def test_an_acker_names_those_that_are_not_done() -> None:
    """With what is known of each: failed, held, never acked, never given out."""
    acker = Acker()
    _add(
        acker,
        (1, 9, _INIT), (1, 9, 0),  # done
        (2, 9, _INIT), (2, 9, _FAILED),
        (3, 9, _INIT), (3, 9, _HELD),
        (4, 9, _INIT),
        (5, 0, 0),
    )  # fmt: skip
    assert acker.outcomes().acked == 1
    told = {2: _INIT | _FAILED, 3: _INIT | _HELD, 4: _INIT, 5: 0}
    assert _flags_of_unfinished(acker) == told


def test_an_empty_acker_has_nothing_to_tell() -> None:
    """Neither done nor left."""
    acker = Acker()
    assert (acker.outcomes().acked, len(acker), _flags_of_unfinished(acker)) == (0, 0, {})


def test_new_roots_stand_between_known_ones() -> None:
    """Before the first, behind the last, side by side and in between; each with its own flags."""
    acker = Acker()
    _add(acker, (20, 1, _INIT), (40, 1, _INIT))
    _add(acker, (50, 1, 0), (10, 1, _FAILED), (30, 1, _INIT), (31, 1, _INIT), (5, 1, _INIT))
    _add(acker, (20, 2, _FAILED), (2**64 - 1, 1, _INIT), (0, 1, 0))
    assert _flags_of_unfinished(acker) == {
        0: 0,
        5: _INIT,
        10: _FAILED,
        20: _INIT | _FAILED,
        30: _INIT,
        31: _INIT,
        40: _INIT,
        50: 0,
        2**64 - 1: _INIT,
    }


def test_known_and_new_roots_of_a_lot_keep_apart() -> None:
    """A lot ends trees that came before, begins others, and repeats itself within."""
    acker = Acker()
    _add(acker, (2, 7, _INIT), (4, 6, _INIT), (6, 5, _INIT))
    _add(acker, (6, 5, 0), (1, 3, _INIT), (2, 4, 0), (2, 3, 0), (1, 3, 0), (5, 1, _INIT))
    assert _flags_of_unfinished(acker) == {4: _INIT, 5: _INIT}
    assert acker.outcomes().acked == 3


def test_columns_that_were_given_stay_as_they_are() -> None:
    """They are the caller's: later messages do not change them."""
    acker = Acker()
    given = np.array([3], np.uint64), np.array([3], np.uint64), np.array([3], np.uint8)
    acker.add(*given)
    len(acker)
    _add(acker, (3, 9, _FAILED))
    assert [column.tolist() for column in given] == [[3], [3], [3]]


@pytest.mark.parametrize("ackers", [1, 2, 7])
def test_roots_fall_evenly_to_ackers(ackers: int) -> None:
    """Each root to one of them, always the same, also where roots are numbered on end."""
    roots = np.arange(1, 7001, dtype=np.uint64)
    found = acker_of(roots, ackers)
    assert (found == acker_of(roots, ackers)).all()
    counts = np.bincount(found, minlength=ackers)
    assert len(counts) == ackers
    assert counts.min() > 0.9 * 7000 / ackers


@pytest.mark.parametrize("root", [0, 1, 7, 2**32 + 5, 2**64 - 1])
def test_acker_of_a_root_is_its_hash_modulo_their_number(root: int) -> None:
    """The upper half of the product with 2**64 over the golden ratio, the same on each machine."""
    (found,) = acker_of(np.array([root], np.uint64), 1000)
    assert found == (root * 0x9E3779B97F4A7C15 % 2**64 >> 32) % 1000


@pytest.mark.parametrize(("what", "unit"), [("_memory", "_bytes"), ("_speed", "_per_s")])
def test_benchmark_checks_what_it_measures(what: str, unit: str) -> None:
    """With few trees as with many, over several chunks; its figures say what they count."""
    measured: Any = getattr(bench, what)(70_000)
    assert all(name.endswith(unit) for name in measured)


def test_many_messages_are_merged_before_anybody_asks() -> None:
    """What is buffered is bounded: by a number, and by a share of the roots that are known."""
    acker = Acker(merged_at=2)
    one = (np.array([7], np.uint64), np.array([1], np.uint64), np.array([_INIT], np.uint8))
    buffered = []
    for _ in range(4):
        acker.add(*one)
        buffered.append(acker._buffered_rows)
    assert buffered == [1, 0, 1, 0]
    assert _flags_of_unfinished(acker) == {}


def test_roots_are_told_as_columns() -> None:
    """Each with its value, and if it failed, is held or kept; untracked ones are left out."""
    tracked = {"is_tracked": True, "is_held": False, "failure": None, "kept": 0}
    roots = [
        SimpleNamespace(**tracked, id=5, value=3),
        SimpleNamespace(**(tracked | {"failure": "bad"}), id=6, value=2),
        SimpleNamespace(is_tracked=False),
        SimpleNamespace(**(tracked | {"is_held": True, "kept": 2}), id=2**64 - 1, value=1),
    ]
    ids, values, flags = columns(roots)
    assert (ids.tolist(), values.tolist()) == ([5, 6, 2**64 - 1], [3, 2, 1])
    assert flags.tolist() == [0, _FAILED, _HELD | AckFlag.KEPT]


@pytest.mark.parametrize("number", [0, 1])
def test_columns_of_roots_have_their_width(number: int) -> None:
    """Also without any root: 17 bytes each, as tasks write them and an acker XORs them."""
    root = SimpleNamespace(is_tracked=True, is_held=False, failure=None, kept=0, id=1, value=2)
    assert [column.dtype for column in columns([root] * number)] == [np.uint64, np.uint64, np.uint8]


def test_nothing_combined_is_nothing() -> None:
    """A step may have given out no event."""
    ids, values, flags = combined(*columns([]))
    assert (ids.tolist(), values.tolist(), flags.tolist()) == ([], [], [])

"""What names a try at a transaction."""

from __future__ import annotations

from typing import Final, NamedTuple

_LIFE_BITS: Final = 40
"""A life has so many tries that it never comes to the numbers of the next. They were 2^20 once:
those numbers are smaller than any of today."""


class TransactionAttempt(NamedTuple):
    """A try at a transaction; the first field of every tuple of a transactional topology.

    Attributes:
        transaction_id: Number of the batch: 1, 2, 3 and so on, the same in each try at it.
        attempt_id: Tells tuples of one try from those of another; it grows from try to try.
    """

    transaction_id: int
    attempt_id: int


def attempts_of_life(life: int) -> int:
    """Return what the attempt ids of a life of the job begin behind: they are larger.

    Those of a later life are larger than all of an earlier one.
    """
    return life << _LIFE_BITS


def life_of_attempt(attempt_id: int) -> int:
    """Return the number of the life that an attempt id is of."""
    return attempt_id >> _LIFE_BITS

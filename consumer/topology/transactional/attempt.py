"""What names a try at a transaction."""

from __future__ import annotations

from typing import NamedTuple


class TransactionAttempt(NamedTuple):
    """A try at a transaction; the first field of every tuple of a transactional topology.

    Attributes:
        transaction_id: Number of the batch: 1, 2, 3 and so on, the same in each try at it.
        attempt_id: Tells tuples of one try from those of another; it grows from try to try.
    """

    transaction_id: int
    attempt_id: int

"""Metadata by transaction, kept for as long as a transaction may be emitted again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequitur.errors import TransactionMetadataError, TransactionOrderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.consumer.topology.transactional.metadata_store import MetadataStore


class RotatingTransactionalState:
    """Metadata by transaction id, each made from the one before.

    After Storm's class of this name. All in the store is read once, when this is made: it is the
    only writer of its folder from then on.

    Args:
        store: Where it is kept.
        name: The folder in it.
        strictly_ordered: Whether ids begin at 1 and have no gaps. Else they grow: a partition may
            appear late, and be away for a while.

    Raises:
        TransactionMetadataError: The store holds what cannot be read.
    """

    def __init__(self, store: MetadataStore, name: str, *, strictly_ordered: bool = True) -> None:
        self._store = store
        self._name = name
        self._is_strict = strictly_ordered
        ids = sorted(_transaction_id(found, name) for found in store.names(name))
        self._metadata = {one: store.read(self._key(one)) for one in ids}  # always in order of ids

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._metadata

    @property
    def transaction_ids(self) -> Sequence[int]:
        """Those that have metadata, in order."""
        return tuple(self._metadata)

    @property
    def last(self) -> Any:
        """Metadata of the latest transaction; None without any."""
        return next(reversed(self._metadata.values()), None)

    def previous(self, transaction_id: int) -> Any:
        """Return the metadata of the latest transaction before one; None without any."""
        before = [one for one in self._metadata if one < transaction_id]
        return self._metadata[before[-1]] if before else None

    def state(self, transaction_id: int, initialize: Callable[[int, Any], Any]) -> Any:
        """Return the metadata of a transaction, and make it if there is none.

        Args:
            transaction_id: The transaction.
            initialize: Takes its id and the metadata of the transaction before, None without one;
                returns its metadata. What it raises goes through, and nothing is kept.

        Raises:
            TransactionOrderError: There is none, and it is not this transaction's turn.
            TransactionMetadataError: JSON has no form for the metadata.
        """
        if transaction_id not in self._metadata:
            self._check_turn(transaction_id)
            made = initialize(transaction_id, self.last)
            key = self._key(transaction_id)
            self._store.write(key, made)
            self._metadata[transaction_id] = self._store.read(key)
        return self._metadata[transaction_id]

    def cleanup_before(self, transaction_id: int) -> None:
        """Remove the metadata of transactions before one, but what the next one goes on from.

        So if that one itself has none, the latest before it is kept.
        """
        kept = max((one for one in self._metadata if one <= transaction_id), default=0)
        self._remove([one for one in self._metadata if one < kept])

    def remove_after(self, transaction_id: int) -> None:
        """Remove the metadata of all transactions behind one: they are made anew."""
        # The latest goes first: whoever is killed in between leaves no gap.
        self._remove([one for one in reversed(self._metadata) if one > transaction_id])

    def _remove(self, ids: Sequence[int]) -> None:
        for one in ids:
            self._store.remove(self._key(one))
            del self._metadata[one]

    def _check_turn(self, transaction_id: int) -> None:
        latest = next(reversed(self._metadata), 0)
        if transaction_id < 1 or transaction_id <= latest:
            raise TransactionOrderError(
                f"{self._name}: transaction {transaction_id} has no metadata"
                + (f", and transaction {latest} behind it has" if latest else ": ids begin at 1")
            )
        if self._is_strict and transaction_id != latest + 1:
            raise TransactionOrderError(
                f"{self._name}: transaction {transaction_id} cannot begin: "
                + (f"the latest with metadata is {latest}" if latest else "none before it has")
                + f", so that {latest + 1} is next"
            )

    def _key(self, transaction_id: int) -> str:
        return f"{self._name}/{transaction_id}"


def _transaction_id(key: str, name: str) -> int:
    text = key.removeprefix(f"{name}/")
    if not (text.isascii() and text.isdecimal()) or text != str(int(text)) or text == "0":
        raise TransactionMetadataError(f"metadata {key!r}: {text!r} is no transaction id")
    return int(text)

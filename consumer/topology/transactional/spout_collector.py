"""The collector by which emitters of transactional spouts emit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sequitur.errors import EmitError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


class SpoutCollector:
    """Takes the tuples of one task for one emission of a batch."""

    __slots__ = ("_component", "_fields", "_is_open", "_transaction", "_tuples")

    def __init__(
        self, component: str, fields: tuple[str, ...], transaction: TransactionAttempt
    ) -> None:
        self._component = component
        self._fields = fields
        self._transaction = transaction
        self._tuples: list[tuple[Any, ...]] = []
        self._is_open = True

    def emit(self, values: Any) -> None:
        """Emit a tuple."""
        if not self._is_open:
            raise EmitError(f"{self._who()} when that batch was over: the tuple is in none")
        self._tuples.append((self._transaction, *self._checked(values)))

    def emit_many(self, values: Iterable[Any]) -> None:
        """Emit a tuple for each of some values; see `emit`. Those before one that raises are in."""
        for one in values:
            self.emit(one)

    def finish(self) -> list[tuple[Any, ...]]:
        """Return what was emitted; from here on nothing is taken."""
        self._is_open = False
        return self._tuples

    def _checked(self, values: Any) -> tuple[Any, ...]:
        fields = self._fields
        if isinstance(values, Mapping):
            missing = [name for name in fields if name not in values]
            unknown = [name for name in values if name not in fields]
            if missing or unknown:
                wrong = f"unknown field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
                raise EmitError(f"{self._who()}: {wrong}; {self._declared()}")
            return tuple(values[name] for name in fields)
        if isinstance(values, tuple | list):
            if len(values) != len(fields):
                raise EmitError(f"{self._who()}: {len(values)} values; {self._declared()}")
            return tuple(values)
        if len(fields) == 1:
            return (values,)
        raise EmitError(f"{self._who()}: {values!r}; {self._declared()}")

    def _who(self) -> str:
        number = self._transaction.transaction_id
        return f"spout {self._component!r} emitted for transaction {number}"

    def _declared(self) -> str:
        return f"its fields are: {', '.join(self._fields)}"

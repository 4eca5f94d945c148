"""What a state is: where it stands, what it maps, and by which rule a repeat is told.

After the states of Storm's transactional topologies and of Trident.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sequitur.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.topology.state.store import StateStore

KEY_TYPES: Final = (str, int, bytes)
VALUE_TYPES: Final = (int, float, str, bytes, bool, object)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_RESERVED: Final = ("sequitur_", "sqlite_", "pg_")


class StateKind(enum.StrEnum):
    """By which rule a repeated transaction is told from a new one."""

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non-transactional"


@dataclass(frozen=True, slots=True)
class State:
    """A keyed state: one table of a database. Use one of the three kinds.

    Args:
        store: The database.
        name: A plain identifier in lower case, unique in the database: the table's name.
        key: `str`, `int` or `bytes`.
        value: `int`, `float`, `str`, `bytes`, `bool`, or `object` for all that JSON has a form for.
        grouped_by: Returns for a key the value of the field by which the component's input is
            grouped, or a tuple of several. Each write is checked by it to be the task's own.

    Raises:
        StateError: The name is no plain identifier, or a type is none of these.
    """

    kind: ClassVar[StateKind]

    store: StateStore
    name: str
    key: type = str
    value: type = int
    grouped_by: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check what was given."""
        if not hasattr(type(self), "kind"):
            raise StateError(
                f"state {self.name!r} has no kind: use TransactionalState, OpaqueState or "
                "NonTransactionalState"
            )
        is_plain = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        if not is_plain or self.name.startswith(_RESERVED):
            raise StateError(
                f"{self.name!r} is no name for a state: take up to 63 lower-case letters, digits "
                f"and underscores, a letter first, and none of the prefixes {', '.join(_RESERVED)}"
            )
        for said, given, known in (
            ("key", self.key, KEY_TYPES),
            ("value", self.value, VALUE_TYPES),
        ):
            if given not in known:
                names = ", ".join(one.__name__ for one in known)
                raise StateError(
                    f"state {self.name!r} has {said}={getattr(given, '__name__', given)!s}: "
                    f"take one of {names}"
                )


@dataclass(frozen=True, slots=True)
class TransactionalState(State):
    """For batches that are the same at each attempt: a repeat changes nothing."""

    kind: ClassVar[StateKind] = StateKind.TRANSACTIONAL


@dataclass(frozen=True, slots=True)
class OpaqueState(State):
    """For batches that may differ at each attempt: a repeat begins from the previous value."""

    kind: ClassVar[StateKind] = StateKind.OPAQUE


@dataclass(frozen=True, slots=True)
class NonTransactionalState(State):
    """Every attempt is applied: a repeat counts twice."""

    kind: ClassVar[StateKind] = StateKind.NON_TRANSACTIONAL

"""What a job without its checkpoint takes over from the one that had it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class FormerJob:
    """A job whose checkpoint is gone, as its subscription knows it."""

    # the newest owner generation of its drivers: later lives have larger attempt ids
    lives: int = 0
    transaction: int = 0  # its last transaction id; 0 before the first
    transactions: str = ""  # what the databases of its states know it by; empty without one

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        return cls(**document)


NO_FORMER_JOB: Final = FormerJob()

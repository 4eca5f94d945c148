"""Counts of rows: of a step, or since the checkpoint began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of rows, of a step or since the checkpoint began.

    Attributes:
        read: Rows that came from the source topics.
        released: Rows that went to the output topic.
        late: Rows that were late, whatever the late policy did with them.
        quarantined: Rows that went to the quarantine topic, by reason.
        duplicates: Rows dropped as duplicates.
        skipped: Rows left out, since the job's subscription had acked them: by a job that lost its
            checkpoint, a time to live, or somebody's hand.
        missing: Rows that were gone before they could be read, at most: offsets, of which not each
            need have had a row. They are not among those read.
    """

    read: int = 0
    released: int = 0
    late: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    skipped: int = 0
    missing: int = 0

    @property
    def held(self) -> int:
        """Rows read that are in no output yet."""
        aside = self.late + sum(self.quarantined.values()) + self.duplicates + self.skipped
        return self.read - self.released - aside

    def plus(self, other: Totals) -> Totals:
        """Return both counted together."""
        reasons = sorted({*self.quarantined, *other.quarantined})
        return Totals(
            read=self.read + other.read,
            released=self.released + other.released,
            late=self.late + other.late,
            quarantined={
                reason: self.quarantined.get(reason, 0) + other.quarantined.get(reason, 0)
                for reason in reasons
            },
            duplicates=self.duplicates + other.duplicates,
            skipped=self.skipped + other.skipped,
            missing=self.missing + other.missing,
        )

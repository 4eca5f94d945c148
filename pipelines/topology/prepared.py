"""What the commit phase of a transaction begins with, as it stands in the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.pipelines.topology.processed import Processed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.step.run import SentTuples
    from sequitur.pipelines.store.files import Location

_FORMAT: Final = 2
_WITHOUT_SIGNATURE: Final = 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the processing phase of a transaction has left."""

    attempt: int
    folder: str  # name of the folder with its files
    batch: str  # names what it is: no other preparation has this name
    # what became of the step's events; of its records and of what bolts keep, all but what the
    # commit phase adds
    processed: Processed
    # the tuples for the commit phase: in which file, and where in it by component and task
    sent: Sequence[SentTuples]
    tasks: Mapping[str, int]  # how many tasks the components of the commit phase had
    # what else the commit phase takes for granted of the topology; None of what an older version
    # has prepared, which goes on as it is
    signature: Mapping[str, Sequence[str]] | None = None

    def to_document(self, root: Location) -> dict[str, Any]:
        """Return it as a JSON document."""
        sent = [
            {
                "file": str(file).removeprefix(f"{root}/"),
                "tuples": [(component, task, at) for (component, task), at in tuples.items()],
            }
            for file, tuples in self.sent
        ]
        return {
            "prepared_format": _FORMAT,
            "attempt": self.attempt,
            "folder": self.folder,
            "batch": self.batch,
            "sent": sent,
            "tasks": dict(self.tasks),
            "signature": self.signature,
            "processed": self.processed.to_document(root),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], root: Location) -> Self:
        """Read `to_document` back."""
        if document["prepared_format"] not in {_WITHOUT_SIGNATURE, _FORMAT}:
            raise ValueError(
                f"it has format {document['prepared_format']}; this version reads up to {_FORMAT}"
            )
        sent = [
            (
                root / one["file"],
                {(component, task): at for component, task, at in one["tuples"]},
            )
            for one in document["sent"]
        ]
        return cls(
            attempt=document["attempt"],
            folder=document["folder"],
            batch=document["batch"],
            processed=Processed.from_document(document["processed"], root),
            sent=sent,
            tasks=document["tasks"],
            signature=document.get("signature"),
        )

"""Which job a checkpoint belongs to, as its `format.json` says, and which one had it before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct, structs

from sequitur.base.stored import load
from sequitur.consumer.reorder.event_time import current_identity
from sequitur.consumer.topology.api.groupings import HASH_VERSION
from sequitur.errors import CheckpointError
from sequitur.pipelines.store.documents import DRAIN_FIRST

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKPOINT_FORMAT: Final = 7
"""No release had 1 to 6. They are refused, and none is used again."""
_BEGUN_WITH: Final = frozenset({"format", "output_partitions"})
"""What a checkpoint says of its beginning, and a job of today may have otherwise."""
_KIND: Final = "sequitur-reorder"


class JobIdentity(Struct, frozen=True):
    input_topics: tuple[str, ...]  # the topics read, empty with a pattern
    input_pattern: str | None  # the pattern of the topics read, if it is one
    event_time: str
    output_topic: str
    # its partitions when the checkpoint was new; if it has gained some since, the log of steps says
    # so
    output_partitions: int
    mode: str  # whether rows are held, and what is kept of their keys
    topology: str | None = None  # name of the topology that runs behind it, if one does
    # of the hash by which its groupings choose tasks
    hash_version: int = HASH_VERSION

    def to_stored(self) -> dict[str, Any]:
        """Return what `format.json` says of a job of this version."""
        shown = structs.asdict(self) | {"input_topics": sorted(self.input_topics)}
        return {"format": CHECKPOINT_FORMAT, "kind": _KIND, **shown}


def check_format(root: str, found: Mapping[str, Any]) -> None:
    """Check that a folder's `format.json` is one that this version reads."""
    if found.get("kind") != _KIND:
        raise CheckpointError(f"{root} is not a reorder job's")
    if found.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"{root} has format {found.get('format')}, this version reads {CHECKPOINT_FORMAT}: "
            f"{DRAIN_FIRST}"
        )


def check_identity(root: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Check that a folder's `format.json` is that of a job, whatever it began with."""
    check_format(root, found)
    for name, value in wanted.items():
        if name in _BEGUN_WITH or _current(name, found.get(name)) == value:
            continue
        own = "a checkpoint and an output topic" if name == "topology" else "a checkpoint"
        raise CheckpointError(
            f"{root} belongs to a job with {name} = {found.get(name)!r}, "
            f"not {value!r}: give the job {own} of its own, or set it back"
        )


def _current(name: str, value: Any) -> Any:
    is_spec = name == "event_time" and isinstance(value, str)
    return current_identity(value) if is_spec else value


def begun_with(found: Mapping[str, Any]) -> int:
    """Return how many partitions the output topic had when the checkpoint was new."""
    return int(found["output_partitions"])


class FormerJob(Struct, frozen=True, forbid_unknown_fields=True):
    """A job whose checkpoint is gone, as its subscription knows it; the next job takes over."""

    # the newest owner generation of its drivers: later lives have larger attempt ids
    lives: int = 0
    transaction: int = 0  # its last transaction id; 0 before the first
    transactions: str = ""  # what the databases of its states know it by; empty without one


NO_FORMER_JOB: Final = FormerJob()


class SubscribedJob(Struct, frozen=True):
    """What `subscription.json` says."""

    TITLE: ClassVar = "subscription of a job"

    subscription: str
    id: str  # by which the subscription knows the checkpoint
    former: FormerJob

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        return {**stored, "former": load(FormerJob, stored["former"])}

"""What became of a step's events, as it stands in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from msgspec import Struct

from sequitur.errors import StateFormatError
from sequitur.pipelines.store.storage import StoredFile
from sequitur.pipelines.topology.kept_keys import KeptKeys

PROCESSED_FORMAT: Final = 5
"""No release had 1 to 4. They are refused, and none is used again."""
KEYED_FORMAT: Final = 6
"""Of a document that names keys. Older versions know no keyed bolts, and refuse it."""
_KEYED_FIELDS: Final[Mapping[str, Any]] = {
    "keys": (), "next_timer_ms": None, "late_for_window": {}, "closed_ms": {}
}  # fmt: skip
"""The fields that it has in addition, as they are in one without keys."""


class ProcessTotals(Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of events since the checkpoint began."""

    taken: int = 0  # events that came out of the reorder stage
    replayed: int = 0  # dead letters that were given back
    acked: int = 0  # events whose trees are done
    dead: int = 0  # events given up, and in the dead-letter topic
    pending: int = 0  # events that wait: taken + replayed = acked + dead + pending
    # tuples that bolts have made by themselves, at ticks and at ends of batches, for other bolts;
    # they are counted apart from events
    made: int = 0
    made_replayed: int = 0  # those of them that were given up, and given back
    made_acked: int = 0  # those whose trees are done
    made_dead: int = 0  # those that were given up, and are in the dead-letter topic
    made_pending: int = 0  # those that wait: made + replayed = acked + dead + pending for them, too
    failed: int = 0  # failed attempts, of events and of these tuples
    outputs: int = 0  # records that bolts emitted, those of failed trees included
    late_acks: int = 0  # acks that came too late, and were ignored
    untracked_failures: int = 0
    crashes: int = 0  # how often a task's process died
    busy_ms: int = 0  # how long the topology ran

    @property
    def waiting(self) -> int:
        """Number of events and tuples that wait."""
        return self.pending + self.made_pending

    @property
    def settled(self) -> int:
        """Number of events and tuples that are done or given up."""
        return self.acked + self.dead + self.made_acked + self.made_dead

    @property
    def are_balanced(self) -> bool:
        """Whether each event, and each tuple that a bolt made, is accounted for."""
        events = self.acked + self.dead + self.pending
        made = self.made_acked + self.made_dead + self.made_pending
        return (self.taken + self.replayed, self.made + self.made_replayed) == (events, made)


class Processed(Struct, frozen=True):
    TITLE: ClassVar = "processed step"

    step: int = -1
    taken: int = 0  # events that it released
    # counts of this and all earlier steps
    totals: ProcessTotals = ProcessTotals()
    next_due_ms: int | None = None  # when the next event is to be tried again; None without any
    # names of the replay requests that are taken in, as long as they are there
    requests: tuple[str, ...] = ()
    # files of records by topic
    records: Mapping[str, tuple[StoredFile, ...]] = {}
    dead: tuple[StoredFile, ...] = ()  # files of dead letters
    unfinished: tuple[StoredFile, ...] = ()  # files with ids of roots whose outputs may not go out
    # files of events that wait, by task of the first stage
    waiting: Mapping[int, tuple[StoredFile, ...]] = {}
    # files of what bolts keep: component, task, path
    states: tuple[tuple[str, int, StoredFile], ...] = ()
    # how many tasks the components of these had
    tasks: Mapping[str, int] = {}
    # the step's time; None before the first. Ticks are due from there on
    time_ms: int | None = None
    # every event up to this event time is done; None as long as none is known
    watermark_ms: int | None = None
    # least event time of what waits, timers too; None without any
    least_waiting_ms: int | None = None
    transaction_id: int = 0  # the newest transaction that is committed; 0 before the first
    # committers that have committed it, and how many tasks they had
    committers: Mapping[str, int] = {}
    keys: tuple[KeptKeys, ...] = ()  # what the tasks of keyed bolts keep
    next_timer_ms: int | None = None  # when the next timer of a key is due; None without any
    # how many events were late for a window and are done, by bolt, of this and all earlier steps
    late_for_window: Mapping[str, int] = {}
    # event times up to which drains have closed windows, by bolt
    closed_ms: Mapping[str, int] = {}

    def to_stored(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["waiting"] = sorted(self.waiting.items())
        if self.keys or self.late_for_window or self.closed_ms:
            return {"format": KEYED_FORMAT, **fields}
        for name in _KEYED_FIELDS:
            del fields[name]
        return {"format": PROCESSED_FORMAT, **fields}

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        if stored.get("format") not in {PROCESSED_FORMAT, KEYED_FORMAT}:
            raise StateFormatError(
                f"{cls.TITLE} of format {stored.get('format')!r}, this version reads "
                f"{PROCESSED_FORMAT} and {KEYED_FORMAT}"
            )
        fields = {**_KEYED_FIELDS, **stored, "waiting": dict(stored["waiting"])}
        return {name: fields[name] for name in cls.__struct_fields__}

    def states_by_task(self) -> dict[tuple[str, int], StoredFile]:
        return {(component, task): path for component, task, path in self.states}

    def has_timers(self, reached_ms: int | None) -> bool:
        """Return whether a timer of a key is due once this event time is reached."""
        due_ms = self.next_timer_ms
        return reached_ms is not None and due_ms is not None and due_ms <= reached_ms

    def keys_by_task(self) -> dict[tuple[str, int], KeptKeys]:
        return {(one.component, one.task): one for one in self.keys}

    def key_folders(self) -> set[str]:
        """Names of the folders with files of keys."""
        return {name for one in self.keys for name in one.folders}

    def folders(self) -> set[str]:
        """Names of the folders whose files later steps need."""
        later = [path for paths in self.waiting.values() for path in paths]
        later += [path for _, _, path in self.states]
        return {path.parent.parent.name for path in later}


_PREPARED_FORMAT: Final = 2
"""No release had 1. It is refused, and not used again."""


class Prepared(Struct, frozen=True, tag_field="prepared_format", tag=_PREPARED_FORMAT):
    """The result of the processing phase of a transaction."""

    TITLE: ClassVar = "prepared step"

    attempt: int
    folder: str  # name of the folder with its files
    batch: str  # names what it is: no other preparation has this name
    # what became of the step's events; of its records and of what bolts keep, all but what the
    # commit phase adds
    processed: Processed
    # the tuples for the commit phase: in which file, and where in it by component and task
    sent: tuple[tuple[StoredFile, Mapping[tuple[str, int], Any]], ...]
    tasks: Mapping[str, int]  # how many tasks the components of the commit phase had
    # what else the commit phase assumes about the topology
    signature: Mapping[str, list[str]]

    def to_stored(self) -> dict[str, Any]:
        sent = [
            {"file": file, "tuples": [(*where, at) for where, at in tuples.items()]}
            for file, tuples in self.sent
        ]
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        processed = self.processed.to_stored()
        return {"prepared_format": _PREPARED_FORMAT, **fields, "processed": processed, "sent": sent}

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        sent = [
            (one["file"], {(component, task): at for component, task, at in one["tuples"]})
            for one in stored["sent"]
        ]
        return {**stored, "processed": Processed.from_stored(stored["processed"]), "sent": sent}

"""What became of a step's events, as it stands in the checkpoint.

Files are named from the checkpoint's folder in the document, and by location in memory: so a
checkpoint can be moved.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.errors import StateFormatError
from sequitur.pipelines.topology.kept_keys import KeptKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.step.run import SentTuples
    from sequitur.pipelines.store.storage import Location


PROCESSED_FORMAT: Final = 5
"""No release had 1 to 4. They are refused, and none is used again."""
KEYED_FORMAT: Final = 6
"""Of a document that names keys. Older versions know no keyed bolts, and refuse it."""
_NO_KEYS: Final[Mapping[str, Any]] = {
    "keys": (), "next_timer_ms": None, "late_for_window": {}, "closed_ms": {}
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProcessTotals:
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


@dataclass(frozen=True, slots=True)
class Processed:
    step: int = -1
    taken: int = 0  # events that it released
    # counts of this and all earlier steps
    totals: ProcessTotals = field(default_factory=ProcessTotals)
    next_due_ms: int | None = None  # when the next event is to be tried again; None without any
    # names of the replay requests that are taken in, as long as they are there
    requests: tuple[str, ...] = ()
    # files of records by topic
    records: Mapping[str, Sequence[Location]] = field(default_factory=dict)
    dead: Sequence[Location] = ()  # files of dead letters
    unfinished: Sequence[Location] = ()  # files with ids of roots whose outputs may not go out
    # files of events that wait, by task of the first stage
    waiting: Mapping[int, Sequence[Location]] = field(default_factory=dict)
    # files of what bolts keep: component, task, path
    states: Sequence[tuple[str, int, Location]] = ()
    # how many tasks the components of these had
    tasks: Mapping[str, int] = field(default_factory=dict)
    # the step's time; None before the first. Ticks are due from there on
    time_ms: int | None = None
    # every event up to this event time is done; None as long as none is known
    watermark_ms: int | None = None
    least_waiting_ms: int | None = None  # least event time of events that wait; None without any
    transaction_id: int = 0  # the newest transaction that is committed; 0 before the first
    # committers that have committed it, and how many tasks they had
    committers: Mapping[str, int] = field(default_factory=dict)
    keys: Sequence[KeptKeys] = ()  # what the tasks of keyed bolts keep
    next_timer_ms: int | None = None  # when the next timer of a key is due; None without any
    # how many events were late for a window and are done, by bolt, of this and all earlier steps
    late_for_window: Mapping[str, int] = field(default_factory=dict)
    # event times up to which drains have closed windows, by bolt
    closed_ms: Mapping[str, int] = field(default_factory=dict)

    def to_document(self, root: Location) -> dict[str, Any]:
        """It as a JSON document."""
        moved = self._with_files(lambda path: str(path).removeprefix(f"{root}/"))
        document = asdict(replace(moved, keys=()))
        document["waiting"] = sorted(moved.waiting.items())
        if not (self.keys or self.late_for_window or self.closed_ms):
            for name in _NO_KEYS:
                del document[name]
            return {"format": PROCESSED_FORMAT, **document}
        keys = [one.to_document(root) for one in self.keys]
        return {"format": KEYED_FORMAT, **document, "keys": keys}

    @classmethod
    def from_document(cls, document: Mapping[str, Any], root: Location) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Another version wrote it.
        """
        if document.get("format") not in {PROCESSED_FORMAT, KEYED_FORMAT}:
            raise StateFormatError(
                f"processed step of format {document.get('format')!r}, this version reads "
                f"{PROCESSED_FORMAT} and {KEYED_FORMAT}"
            )
        document = {**_NO_KEYS, **document}
        values = {one.name: document[one.name] for one in fields(cls)}
        values["keys"] = tuple(KeptKeys.from_document(one, root) for one in document["keys"])
        values["totals"] = ProcessTotals(**values["totals"])
        values["requests"] = tuple(values["requests"])
        values["waiting"] = {place: tuple(paths) for place, paths in values["waiting"]}
        values["states"] = [tuple(one) for one in values["states"]]
        found = cls(**values)
        return found._with_files(lambda path: root / path)

    def states_by_task(self) -> dict[tuple[str, int], Location]:
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

    def _with_files(self, moved: Callable[[Any], Any]) -> Self:
        """Return a copy with other names of its files."""

        def each(paths: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(moved(path) for path in paths)

        return replace(
            self,
            records={topic: each(paths) for topic, paths in self.records.items()},
            dead=each(self.dead),
            unfinished=each(self.unfinished),
            waiting={place: each(paths) for place, paths in self.waiting.items()},
            states=[(component, task, moved(path)) for component, task, path in self.states],
        )


_PREPARED_FORMAT: Final = 2
"""No release had 1. It is refused, and not used again."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of the processing phase of a transaction."""

    attempt: int
    folder: str  # name of the folder with its files
    batch: str  # names what it is: no other preparation has this name
    # what became of the step's events; of its records and of what bolts keep, all but what the
    # commit phase adds
    processed: Processed
    # the tuples for the commit phase: in which file, and where in it by component and task
    sent: Sequence[SentTuples]
    tasks: Mapping[str, int]  # how many tasks the components of the commit phase had
    # what else the commit phase assumes about the topology
    signature: Mapping[str, Sequence[str]]

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
            "prepared_format": _PREPARED_FORMAT,
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
        """Read `to_document` back.

        Raises:
            StateFormatError: Another version wrote it.
        """
        if document["prepared_format"] != _PREPARED_FORMAT:
            raise StateFormatError(
                f"prepared step of format {document['prepared_format']!r}, this version reads "
                f"{_PREPARED_FORMAT}"
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
            signature=document["signature"],
        )

"""Which dead letters the job was given back: in `replayed/<number>` of its checkpoint.

A document is created exclusively, before the request it is about. So of two commands at once one
sees what the other has taken. A command whose request cannot be written gives its letters back.
One that dies in between leaves them noted as replayed. In the other order they would come twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sequitur.pipelines.store.documents import check_format, read_document
from sequitur.pipelines.topology.replays import REPLAYS_FOLDER, RequestInDoubtError, write_request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import pyarrow as pa

    from sequitur.pipelines.store.storage import Location, Storage


_FOLDER: Final = "replayed"
_REPLAYED_FORMAT: Final = 1

Letter = tuple[int, int]
"""Its partition and offset in the dead-letter topic."""


class ReplayedLetters:
    """The dead letters of one topic that were replayed."""

    def __init__(self, storage: Storage, topic_id: str) -> None:
        self._storage = storage
        self._topic_id = topic_id
        self._read: set[str] = set()
        self._taken: str | None = None

    def new(self, letters: Collection[Letter]) -> set[Letter]:
        """Return those of letters that were not replayed before."""
        self._read.clear()
        return self._left(set(letters))

    def take(self, letters: Collection[Letter]) -> set[Letter]:
        """Note letters as replayed, and return those that were not before."""
        self._storage.make_folder(_FOLDER)
        new = self.new(letters)
        while new:
            number = 1 + max((int(name) for name in self._read), default=-1)
            name = f"{_FOLDER}/{number:06d}"
            if self._storage.create(name, self._document(new)):
                self._taken = name
                break
            new = self._left(new)
        return new

    def give_back(self) -> None:
        """Note the letters that were taken last as not replayed: nothing requests them."""
        if self._taken is not None:
            # Its number stays: who has read it already would not read another document there.
            self._storage.replace(self._taken, self._document(()))
            self._taken = None

    def _left(self, letters: set[Letter]) -> set[Letter]:
        """Return the letters that the documents not read yet do not note."""
        names = set(self._storage.names(_FOLDER))
        for name in names - self._read:
            spans = read_document(self._storage, f"{_FOLDER}/{name}", self._spans) or ()
            letters = {one for one in letters if not _is_in(one, spans)}
        self._read |= names
        return letters

    def _document(self, letters: Iterable[Letter]) -> str:
        said = {"format": _REPLAYED_FORMAT, "topic": self._topic_id, "letters": _spans_of(letters)}
        return json.dumps(said)

    def _spans(self, document: dict[str, Any]) -> list[list[int]]:
        check_format(document, _REPLAYED_FORMAT)
        spans: list[list[int]] = document["letters"]
        return spans if document["topic"] == self._topic_id else []


class Requested(NamedTuple):
    """What became of letters."""

    path: Location | None  # the request; None where all of them were replayed before
    events: int
    letters: int


def request_letters(
    storage: Storage,
    topic_id: str,
    letters: Collection[Letter],
    rows_of: Callable[[set[Letter]], pa.Table],
    *,
    again: bool = False,
) -> Requested:
    """Request letters that were not replayed before, or all of them.

    No letter counts as replayed whose request cannot be written.

    Args:
        storage: The job's checkpoint.
        topic_id: The id of the dead-letter topic.
        letters: What is requested.
        rows_of: Gives the rows of letters.
        again: Request also letters that were replayed before.
    """
    replayed = ReplayedLetters(storage, topic_id)
    new = replayed.take(letters)
    try:
        requested = set(letters) if again else new
        if not requested:
            return Requested(None, 0, 0)
        rows = rows_of(requested)
        path = write_request(storage.location(REPLAYS_FOLDER), rows)
        return Requested(path, len(rows), len(requested))
    except RequestInDoubtError:
        raise
    except BaseException:
        replayed.give_back()
        raise


def _spans_of(letters: Iterable[Letter]) -> list[list[int]]:
    """Return letters as spans: partition, first and last offset of each."""
    spans: list[list[int]] = []
    for partition, offset in sorted(letters):
        if spans and spans[-1][0] == partition and spans[-1][2] == offset - 1:
            spans[-1][2] = offset
        else:
            spans.append([partition, offset, offset])
    return spans


def _is_in(letter: Letter, spans: Iterable[list[int]]) -> bool:
    partition, offset = letter
    return any(one == partition and first <= offset <= last for one, first, last in spans)

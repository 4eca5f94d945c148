"""Which dead letters the job was given back: in `replayed/<number>` of its checkpoint.

A document is created exclusively, before the request it is about. So of two commands at once one
sees what the other has taken; and a command that dies in between has its letters told as replayed
the next time, where they would be put out twice in the other order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sequitur.pipelines.store.documents import check_format, read_document

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sequitur.pipelines.store.storage import Storage

_FOLDER: Final = "replayed"
_FORMAT: Final = 1

Letter = tuple[int, int]
"""Its partition and offset in the dead-letter topic."""


class ReplayedLetters:
    """The dead letters of one topic that were replayed."""

    def __init__(self, storage: Storage, topic_id: str) -> None:
        self._storage = storage
        self._topic_id = topic_id

    def take(self, letters: Collection[Letter]) -> set[Letter]:
        """Note letters as replayed, and return those that were not before."""
        self._storage.make_folder(_FOLDER)
        known: set[Letter] = set()
        read: set[str] = set()
        while True:
            names = set(self._storage.names(_FOLDER))
            for name in names - read:
                spans = read_document(self._storage, f"{_FOLDER}/{name}", self._spans) or ()
                known.update(one for one in letters if _is_in(one, spans))
            read |= names
            new = set(letters) - known
            number = 1 + max((int(name) for name in read), default=-1)
            if not new or self._storage.create(f"{_FOLDER}/{number:06d}", self._document(new)):
                return new

    def _document(self, letters: Iterable[Letter]) -> str:
        said = {"format": _FORMAT, "topic": self._topic_id, "letters": _spans_of(letters)}
        return json.dumps(said)

    def _spans(self, document: dict[str, Any]) -> list[list[int]]:
        check_format(document, _FORMAT)
        spans: list[list[int]] = document["letters"]
        return spans if document["topic"] == self._topic_id else []


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

"""A checkpoint's documents, in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sequitur.pipelines.store.documents import understood

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Found = TypeVar("_Found")


@dataclass(slots=True)
class DocumentFolder:
    """Keeps documents as `sequitur.pipelines.kafka.commit_tokens.Documents` wants it."""

    root: str = "memory:/checkpoint"
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read_document(
        self, name: str, meaning: Callable[[dict[str, Any]], _Found]
    ) -> _Found | None:
        """What a document says, None when there is none."""
        if name not in self.documents:
            return None
        return understood(f"{self.root}/{name}", json.dumps(self.documents[name]), meaning)

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep one that is not there yet."""
        assert name not in self.documents
        self.documents[name] = dict(document)

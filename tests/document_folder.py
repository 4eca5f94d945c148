"""A checkpoint's documents, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class DocumentFolder:
    """Keeps documents as `pipelines._commit_tokens.Documents` wants it."""

    root: str = "memory:/checkpoint"
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read_document(self, name: str) -> dict[str, Any] | None:
        """A document, None when there is none."""
        return self.documents.get(name)

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep one that is not there yet."""
        assert name not in self.documents
        self.documents[name] = dict(document)

"""A checkpoint's documents, in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sequitur.pipelines.store.documents import read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sequitur.pipelines.store.storage import SparkFolder

_Found = TypeVar("_Found")


@dataclass(slots=True)
class DocumentFolder:
    """Keeps documents as `sequitur.pipelines.sink.step_plans.Documents` wants it."""

    root: str = "memory:/checkpoint"
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read_document(
        self, name: str, meaning: Callable[[dict[str, Any]], _Found]
    ) -> _Found | None:
        return read_document(cast("SparkFolder", self), name, meaning)

    def exists(self, name: str) -> bool:
        return name in self.documents

    def read(self, name: str) -> str:
        return json.dumps(self.documents[name])

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        assert name not in self.documents
        self.documents[name] = dict(document)

    def check_owner(self) -> None:
        """Nobody else has it."""

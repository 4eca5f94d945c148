"""The one reader of a checkpoint's JSON documents: what is damaged is told by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sequitur.consumer import StateFormatError
from sequitur.pipelines._errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.pipelines.store.storage import SparkFolder

_Found = TypeVar("_Found")
BEGIN_ANEW: Final = (
    "give the job a checkpoint, an app and an output topic of its own: it then reads its input anew"
)


def read_document(
    storage: SparkFolder, name: str, meaning: Callable[[dict[str, Any]], _Found]
) -> _Found | None:
    """Return what a document says; None when there is none.

    Args:
        storage: The folder.
        name: The document.
        meaning: Makes what is wanted of it; it need not look whether each field is there.

    Raises:
        CheckpointError: It is damaged, or another version's.
    """
    if not storage.exists(name):
        return None
    try:
        return understood(f"{storage.root}/{name}", storage.read(name), meaning)
    except UnicodeDecodeError as error:
        raise _damaged(f"{storage.root}/{name}", error) from error


def understood(
    where: str, text: str | bytes, meaning: Callable[[dict[str, Any]], _Found]
) -> _Found:
    """Return what the text of a document says.

    Args:
        where: The document's place, for the error.
        text: The text.
        meaning: As that of `read_document`.

    Raises:
        CheckpointError: It is damaged, or another version's.
    """
    try:
        return meaning(_as_object(json.loads(text)))
    except KeyError as error:
        raise _damaged(where, f"it has no {error}") from error
    except (AttributeError, StateFormatError, TypeError, ValueError) as error:
        raise _damaged(where, error) from error


def _as_object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"not a JSON object but {type(found).__name__}")
    return found


def _damaged(where: str, why: object) -> CheckpointError:
    return CheckpointError(
        f"{where} cannot be read: {why}. Put the checkpoint back from a copy, whole, or "
        f"{BEGIN_ANEW}"
    )

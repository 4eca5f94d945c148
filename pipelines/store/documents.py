"""The one reader of a checkpoint's JSON documents: an error names the document that is damaged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sequitur.errors import CheckpointError, StateFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.pipelines.store.storage import SparkFolder


_Found = TypeVar("_Found")
BEGIN_ANEW: Final = (
    "give the job a checkpoint, an app and an output topic of its own: it then reads its input "
    "again"
)
DRAIN_FIRST: Final = (
    "let the version that wrote it release the rows it holds (--available-now --drain), then give "
    "the job a checkpoint and an app of its own"
)


def read_document(
    storage: SparkFolder,
    name: str,
    meaning: Callable[[dict[str, Any]], _Found],
    other_version: str = DRAIN_FIRST,
) -> _Found | None:
    """Return the meaning of a document; None if there is none."""
    if not storage.exists(name):
        return None
    where = f"{storage.root}/{name}"
    try:
        found = json.loads(storage.read(name))
        if not isinstance(found, dict):
            raise TypeError(f"not a JSON object but {type(found).__name__}")  # noqa: TRY301
        return meaning(found)
    except KeyError as error:
        raise damaged(where, f"it has no {error}") from error
    except StateFormatError as error:
        is_of_another_version = error.__cause__ is None
        if not (is_of_another_version and found.keys() & {"format", "prepared_format"}):
            raise damaged(where, error) from error
        raise CheckpointError(f"{where} cannot be read: {error}: {other_version}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise damaged(where, error) from error


def damaged(where: str, why: object) -> CheckpointError:
    return CheckpointError(
        f"{where} cannot be read: {why}. Put the checkpoint back from a copy, whole, or "
        f"{BEGIN_ANEW}"
    )

"""A folder of documents and files that one process at a time owns.

- Documents are created whole or not at all, and never over one that is there. A process that finds
  another's document where its own was to stand, stops.
- A name of `new_name` belongs to one attempt at a step: `<step>-<owner generation>-<attempt>`. It
  stands in the document that makes it count. So no process writes over what another relies on.
- Nothing in the folder says where it stands: it can be moved.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from sequitur.errors import CheckpointError, OwnershipError
from sequitur.pipelines.store.documents import DRAIN_FIRST, read_document
from sequitur.pipelines.store.ownership import HEARTBEATS_FOLDER, OWNERS_FOLDER, Ownership
from sequitur.pipelines.store.storage import new_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sequitur.pipelines.store.storage import Location, Storage

_Found = TypeVar("_Found")
FORMAT_DOCUMENT = "format.json"
_DELETION_S: Final = 1.0
"""So long the deletion of the folder may take from the first file that is missed."""


class OwnedFolder:
    """The folder.

    What reads a document raises `CheckpointError` if it cannot be read. What writes one that
    decides something raises `OwnershipError` if it is there already, or another process has taken
    the folder over.
    """

    _OTHER_VERSION: ClassVar = DRAIN_FIRST  # what to do about a document of another version

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._ownership = Ownership(storage)
        self._attempts = itertools.count()

    @property
    def root(self) -> str:
        return self._storage.root

    @property
    def owner(self) -> int:
        """Our owner generation; 0 before the claim."""
        return self._ownership.generation

    @property
    def is_lost(self) -> bool:
        """Whether another process was seen to take the folder over."""
        return self._ownership.is_lost

    @property
    def storage(self) -> Storage:
        """The folder itself, for callers that check the owner before they write."""
        return self._storage

    def location(self, name: str = "") -> Location:
        return self._storage.location(name)

    def new_folder(self, name: str) -> Location:
        """Make a folder in it; only this attempt has its name, so it is not there yet."""
        location = self.location(name)
        new_folder(location)
        return location

    def new_name(self, step: int) -> str:
        """Return a name for what this attempt at a step writes; no other attempt has it."""
        return f"{step_name(step)}-{self.owner:06d}-{next(self._attempts)}"

    def check_owner(self, *, may_know: bool = False) -> None:
        self._ownership.check(may_know=may_know)

    @contextlib.contextmanager
    def while_owned(self) -> Iterator[None]:
        """Run a block; where it fails since the folder is gone or another process has it, say that.

        What the other one has logged and deleted meanwhile may look as if part of it were gone.
        """
        try:
            yield
        except Exception as error:
            if not self.owner:
                raise
            if not self._is_gone():
                self.check_owner()
                if not (_misses_file(error) and self._vanishes()):
                    raise
            raise CheckpointError(
                f"{self.root} was deleted or moved while the job ran. Put it back, and start the "
                "job again: nothing is lost then. If you cannot, start over with another "
                "checkpoint, app and output topic"
            ) from error

    def _is_gone(self) -> bool:
        try:
            return not self._storage.exists(FORMAT_DOCUMENT)
        except OSError:
            return False  # a store that does not answer may still have it

    def _vanishes(self) -> bool:
        """Wait a moment, and return whether the folder is gone then: its files go one by one."""
        deadline_s = time.monotonic() + _DELETION_S
        while not self._is_gone():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_DELETION_S / 20)
        return True

    def close(self) -> None:
        """Release the folder, so that the next life need not wait."""
        self._ownership.release()

    def read_document(
        self, name: str, meaning: Callable[[dict[str, Any]], _Found]
    ) -> _Found | None:
        """Return the meaning of a document; None if there is none."""
        return read_document(self._storage, name, meaning, self._OTHER_VERSION)

    def write_document(
        self, name: str, document: Mapping[str, Any], after: Sequence[str] = ()
    ) -> None:
        """Write a document, whole or not at all, once what it rests on outlasts a power cut."""
        text = as_text({**document, "life": self._ownership.life})
        # A disk may take long to sync, and another process may take the folder over meanwhile.
        check = partial(self.check_owner, may_know=True)
        if not self._storage.create(name, text, after, check=check):
            self.check_owner()
            raise OwnershipError(
                f"{self.root}/{name} is there already: a process that had this checkpoint before "
                "us was still at work. Nothing is lost. Start the job again once that "
                "process has ended"
            )

    def _newest(self, folder: str, meaning: Callable[[dict[str, Any]], _Found]) -> _Found | None:
        names = self._storage.names(folder)
        return self.read_document(f"{folder}/{names[-1]}", meaning) if names else None

    def _made_by(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Write `format.json` if it is missing; return its content."""
        storage = self._storage
        if not storage.exists(FORMAT_DOCUMENT):
            # Ask again: another start may have made the folder meanwhile.
            if storage.names("") and not storage.exists(FORMAT_DOCUMENT):
                raise CheckpointError(f"{self.root} holds something else: give a folder of its own")
            storage.make_folder("")
            # The first document of all: a folder that is not empty then always names its owner.
            storage.create(FORMAT_DOCUMENT, as_text(document))
        return self.read_document(FORMAT_DOCUMENT, dict) or {}

    def _take(self, folders: Iterable[str], decisive: Iterable[str]) -> None:
        for folder in folders:
            self._storage.make_folder(folder)
        self._ownership.take()
        for folder in ("", OWNERS_FOLDER, HEARTBEATS_FOLDER, *folders):
            self._storage.drop_unfinished(folder)
        for folder in decisive:
            # The process that wrote the newest of them may have died before it was synced.
            self._storage.sync(folder)


def _misses_file(error: BaseException | None) -> bool:
    """Tell whether an error may come from a file that is not there, here or in a task."""
    while error is not None:
        if isinstance(error, FileNotFoundError | CheckpointError):
            return True
        if FileNotFoundError.__name__ in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def step_name(step: int) -> str:
    """Name a step so that names sort as numbers do."""
    return f"{step:012d}"


def as_text(document: Mapping[str, Any]) -> str:
    """Return JSON with a line for each field: it is fast to write, and readable."""
    fields = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items())
    return "{\n" + ",\n".join(fields) + "\n}\n"

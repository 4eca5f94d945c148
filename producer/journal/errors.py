"""The errors of the journal.

ProducerError
└── JournalError
    ├── JournalClosedError     the producer ended before the journal had the awaited events
    ├── JournalBusyError       no file can be opened now: try again
    ├── JournalFullError       no room: wait for acks, `sync`, `reclaim`, try again
    ├── JournalLockedError     another process holds the directory
    ├── JournalNameError       the directory belongs to another producer
    ├── JournalVersionError    written in another format
    ├── JournalCorruptError    damage that is no torn tail: good frames would be lost
    └── JournalFailedError     the disk refused a write or a sync: nothing further is promised
"""

from sequitur.producer._errors import ProducerError


class JournalError(ProducerError):
    """Base of the journal's errors."""


class JournalClosedError(JournalError):
    """The producer was closed, or failed, before the journal had the awaited events.

    They may be in the journal or not: their outcomes tell.
    """


class JournalBusyError(JournalError):
    """Too many files are open, so the journal cannot be read now; it is not damaged.

    Files are closed again: try later.
    """


class JournalFullError(JournalError):
    """The round does not fit below the size limit, or the disk has no space left.

    Nothing of the round was written. Acks make room: append their marks, call `sync` and
    `reclaim`, try again.
    """


class JournalLockedError(JournalError):
    """Another process holds the journal.

    Attributes:
        directory: the journal's directory.
        pid: the holder's process id, or None when its lock file does not say.
    """

    def __init__(self, directory: str, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"journal {directory} is held by {holder}; "
            f"a producer name belongs to one process at a time"
        )


class JournalNameError(JournalError):
    """The journal was written under another producer name."""

    def __init__(self, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            f"the journal belongs to producer {found!r}, not to {expected!r}; "
            f"give each producer name a directory of its own"
        )


class JournalVersionError(JournalError):
    """The journal was written in another format than this version reads."""

    def __init__(self, segment: str, found: int, known: int) -> None:
        self.segment = segment
        self.found = found
        self.known = known
        age = "newer" if found > known else "older"
        super().__init__(
            f"{segment} has journal format version {found}; this version reads {known}: let the "
            f"{age} version that wrote it send what it holds (`sequitur journal show` then has no "
            f"un-acked batches), and give this version an empty directory; or start the {age} "
            f"version"
        )


class JournalCorruptError(JournalError):
    """Bytes that were synced cannot be read, and going on would lose what they or others hold.

    Attributes:
        segment: the segment's file name.
        offset: where the damage begins, bytes.
        lost: what cannot be read.
        follows: what can still be read behind it.
    """

    def __init__(self, segment: str, offset: int, lost: str, follows: str) -> None:
        self.segment = segment
        self.offset = offset
        self.lost = lost
        self.follows = follows
        super().__init__(f"{segment} is damaged at offset {offset}: {lost}; {follows}")


class JournalFailedError(JournalError):
    """A write or a sync failed, so what the disk holds is unknown until the next open.

    After a failed sync the kernel may have dropped the dirty pages and would report the next
    sync as a success; therefore the journal refuses everything from then on.
    """

"""Errors of this package.

::

    ConsumerError
    ├── EventTimeSpecError    the setting that says where the event time stands is not understood
    ├── StateFormatError      a state document is another program's, or a newer version's
    ├── ConservationError     a row was lost or doubled: read is not what the outputs and held are
    └── CursorError
        ├── AckBeyondEndError     an ack of an offset that the partition does not have yet
        ├── MarkDeleteBackError   a cumulative ack would move the mark-delete position back
        ├── CursorDamagedError    a written cursor was cut or changed, or never was one
        ├── CursorVersionError    a written cursor has a format that this version does not know
        ├── ForeignCursorError    a written cursor is that of another subscription or partition
        └── CursorChunksError     a chunk is missing, doubled, or of another generation

The last four are `StateFormatError`, too.
"""

from __future__ import annotations


class ConsumerError(Exception):
    """Base of every error this package raises on purpose."""


class EventTimeSpecError(ConsumerError, ValueError):
    """An event-time setting is not one of the forms understood."""


class StateFormatError(ConsumerError):
    """A state document was written by something else, or by a newer version."""


class ConservationError(ConsumerError):
    """The rows read are not the rows accounted for. Never expected; stops the job."""


class CursorError(ConsumerError):
    """Base of every error about a subscription's cursor."""


class AckBeyondEndError(CursorError, ValueError):
    """An ack, or a read position, lies beyond the end of the partition; nothing was changed."""


class MarkDeleteBackError(CursorError, ValueError):
    """A cumulative ack lies before the mark-delete position; nothing was changed."""


class CursorDamagedError(CursorError, StateFormatError):
    """The bytes or the text were cut or changed since they were written, or are no cursor."""


class CursorVersionError(CursorError, StateFormatError):
    """The cursor was written in a format that this version does not know."""


class ForeignCursorError(CursorError, StateFormatError):
    """The cursor is whole, and that of another subscription, topic or partition."""


class CursorChunksError(CursorError, StateFormatError):
    """Chunks are missing, there twice, or of another generation than the pointer names."""

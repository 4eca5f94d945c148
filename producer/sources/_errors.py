"""The errors of the daemon's sources.

SourceError
├── SourceSpecError       the setting `source` names no source
├── KeySpecError          the setting `key` names no place
├── PositionError         the journal's position is not one of this source, or of another recording
├── LostFileError         a file with unread events is gone, and `on_lost_file` is `fail`
├── DeadLettersFullError  the dead-letter file has reached its limit, or its disk is full
├── NoRoomError           the producer accepted no event in time
└── StoppingError         the daemon stops: the events were not accepted
"""

from __future__ import annotations

from sequitur.producer._errors import ProducerError


class SourceError(ProducerError):
    """Base of the errors of sources; by itself: a source that cannot be read."""


class SourceSpecError(SourceError, ValueError):
    """The setting `source` names no source."""


class KeySpecError(SourceError, ValueError):
    """The setting `key` names no place in an event."""


class PositionError(SourceError):
    """The journal holds a position that this source cannot go on from."""


class LostFileError(SourceError):
    """A file that was read up to a position is gone, or was cut, before it was read to its end."""


class DeadLettersFullError(SourceError):
    """The dead-letter file has reached its limit, or its disk fails: no entry can be written."""


class NoRoomError(SourceError):
    """The producer's buffer stayed full; nothing was accepted."""


class StoppingError(SourceError):
    """The daemon stops, and there was no room before; nothing was accepted."""

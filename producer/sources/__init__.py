"""Where the daemon's events come from: one module a source, all that is known of it."""

from sequitur.errors import (
    DeadLettersFullError,
    KeySpecError,
    LostFileError,
    NoRoomError,
    PositionError,
    SourceError,
    SourceSpecError,
    StoppingError,
)
from sequitur.producer.sources._dead_letter import DeadLetterFile
from sequitur.producer.sources._registry import SourceSettings, check_source, make_source
from sequitur.producer.sources._source import Intake, IntakeTicket, Source, SourceStatistics

__all__ = [
    "DeadLetterFile",
    "DeadLettersFullError",
    "Intake",
    "IntakeTicket",
    "KeySpecError",
    "LostFileError",
    "NoRoomError",
    "PositionError",
    "Source",
    "SourceError",
    "SourceSettings",
    "SourceSpecError",
    "SourceStatistics",
    "StoppingError",
    "check_source",
    "make_source",
]

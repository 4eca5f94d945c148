"""Where the daemon's events come from: one module a source, one protocol for all."""

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
from sequitur.producer.sources._make import check_source, make_source
from sequitur.producer.sources._settings import SourceSettings
from sequitur.producer.sources._source import Intake, IntakeTicket, Source, SourceStatistics
from sequitur.producer.sources._spec import SourceSpec, parse_source

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
    "SourceSpec",
    "SourceSpecError",
    "SourceStatistics",
    "StoppingError",
    "check_source",
    "make_source",
    "parse_source",
]

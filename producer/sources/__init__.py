"""Where the daemon's events come from: one module a source, one protocol for all."""

from producer.sources._dead_letter import DeadLetter, DeadLetterFile, read_dead_letters
from producer.sources._errors import (
    DeadLettersFullError,
    KeySpecError,
    LostFileError,
    NoRoomError,
    PositionError,
    SourceError,
    SourceSpecError,
    StoppingError,
)
from producer.sources._intake import Intake, IntakeTicket, Source, SourceStatistics
from producer.sources._make import make_source
from producer.sources._settings import SourceSettings
from producer.sources._spec import SourceSpec, parse_address, parse_source

__all__ = [
    "DeadLetter",
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
    "make_source",
    "parse_address",
    "parse_source",
    "read_dead_letters",
]

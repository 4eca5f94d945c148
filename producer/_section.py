"""What a group of settings is, and the error about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from sequitur.producer._errors import ProducerError


class SettingsError(ProducerError, ValueError):
    """One or more settings are unknown, missing or wrong; the message names each of them."""


class Section(BaseModel):
    """A group of settings that belong together: one table of the TOML file.

    Attributes:
        title: The panel of `--help` that its flags are in.
        panels: Further panels by title, and the settings whose flags are in them.
    """

    title: ClassVar[str] = "Settings"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        hide_input_in_errors=True,  # it may hold a password
    )

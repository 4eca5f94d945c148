"""What a group of settings is, and the error about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A group of settings that belong together: one table of the TOML file.

    Attributes:
        title: The panel of `--help` that its flags are in.
        panels: Further panels by title, and the settings whose flags are in them.
        former: Names that settings had before, which are understood still, and the names of today.
    """

    title: ClassVar[str] = "Settings"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    former: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        hide_input_in_errors=True,  # it may hold a password
    )

    @classmethod
    def by_names_of_today(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by the names that they have today.

        Raises:
            ValueError: One is given by both its names.
        """
        found = dict(given)
        for former, name in cls.former.items():
            if former in found:
                if name in found:
                    raise ValueError(f"{former} is called {name} now: give only {name}")
                found[name] = found.pop(former)
        return found

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        return cls.by_names_of_today(given) if isinstance(given, Mapping) else given

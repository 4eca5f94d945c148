"""The generations of a rotated file, and which one comes after another. No I/O.

Rotation leaves, beside `app.log`, older generations under names such as `app.log.1`,
`app.log-20261120`, `app.log.2026-11-20_10` or `app-2026-11-20.log`. Their order is that of their
last write; of files last written in the same instant, a higher plain number is older
(`app.log.2` before `app.log.1`) and a lower date is older.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_STAMP: Final = r"[.\-_](?P<stamp>[0-9][0-9.\-_:TZ]*)"
_MAX_NUMBER_DIGITS: Final = 5
"""A plain number with more digits is a date."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One file of a rotation.

    Attributes:
        name: Its name now; empty if it was removed.
        device: Its device.
        inode: Its inode.
        modified_ns: When it was last written.
    """

    name: str
    device: int
    inode: int
    modified_ns: int

    def is_same_file(self, device: int, inode: int) -> bool:
        """Return whether it is the file with this device and inode."""
        return (self.device, self.inode) == (device, inode)


class Rotation:
    """The names of one file's generations.

    Args:
        name: The name under which the file is written.
    """

    def __init__(self, name: str) -> None:
        stem, dot, suffix = name.rpartition(".")
        patterns = [re.escape(name) + _STAMP]
        if stem and dot:
            within = _STAMP.replace("stamp", "inner") + re.escape(dot + suffix)
            patterns.append(re.escape(stem) + within)
        self._pattern = re.compile("|".join(patterns))

    def is_rotated(self, name: str) -> bool:
        """Return whether this is the name of an older generation, as rotation gives them."""
        return self._pattern.fullmatch(name) is not None

    def in_order(self, generations: Iterable[Generation]) -> list[Generation]:
        """Return the generations, oldest first."""
        return sorted(generations, key=self._age)

    def younger(
        self, current: Generation, generations: Iterable[Generation], *, previous_inode: int = 0
    ) -> list[Generation]:
        """Return those rotated after `current`, oldest first.

        Not the one read before it: whoever wrote it may have ended after the new one was made.
        """
        rotated = (
            generation
            for generation in generations
            if self.is_rotated(generation.name)
            and not generation.is_same_file(current.device, current.inode)
            and generation.inode != previous_inode
            and self._age(generation) > self._age(current)
        )
        return self.in_order(rotated)

    def written_since(
        self, modified_ns: int, generations: Iterable[Generation], *, previous_inode: int = 0
    ) -> list[Generation]:
        """Return those rotated and last written after a moment, oldest first."""
        rotated = (
            generation
            for generation in generations
            if self.is_rotated(generation.name)
            and generation.inode != previous_inode
            and generation.modified_ns > modified_ns
        )
        return self.in_order(rotated)

    def _age(self, generation: Generation) -> tuple[int, tuple[int, ...]]:
        match = self._pattern.fullmatch(generation.name)
        if match is None:
            return generation.modified_ns, ()
        stamp = next(filter(None, match.groups()))
        numbers = [int(number) for number in re.findall("[0-9]+", stamp)]
        is_plain = len(numbers) == 1 and len(stamp) <= _MAX_NUMBER_DIGITS
        return generation.modified_ns, (-numbers[0],) if is_plain else (1, *numbers)

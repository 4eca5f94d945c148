"""The generations of a rotated file: which were read, and which comes next. No I/O.

Rotation leaves, beside `app.log`, older generations under names such as `app.log.1`,
`app.log-20261120`, `app.log.2026-11-20_10` or `app-2026-11-20.log`.

*A file that was not beside the log when the log was opened is younger than the log.* So a position
lists the generations that were there, by inode and by their first bytes. Neither times of last
write nor numbers can hide a generation: a clock may be set back, and numbers may count either way.

Names only give the order of several new generations. The higher of two plain numbers is older, or
newer if a rotation counts upwards. All other generations are as old as their last write. A number
that contradicts what was there before is reported.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec

from sequitur.producer.sources._head import HEAD_BYTES, digest, why_no_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RotatedNumbers = Literal["higher-is-older", "higher-is-newer"]
MAX_LISTED: Final = 64
"""Generations that a position lists; the time of the last write decides about others."""
_STAMP: Final = r"[.\-_](?P<stamp>[0-9][0-9.\-_:TZ]*)"
_COMPRESSED: Final = re.compile(r"(?P<name>.+)\.(?:gz|bz2|xz|zst|lz4|Z)", re.DOTALL)
_NUMBER: Final = re.compile(r"(?!(?:19|20)[0-9]{2}$)[0-9]{1,5}")
"""A plain number; one with more digits is a date, and so is a year."""
_DATE_DIGITS: Final = 8
_MISNUMBERED: Final = "its number says that it is older than what was read before it came"
_COMPRESSED_UNREAD: Final = "it was compressed before it was read"


class Rotation:
    """The names of one file's generations."""

    def __init__(self, name: str, numbers: RotatedNumbers = "higher-is-older") -> None:
        stem, dot, suffix = name.rpartition(".")
        patterns = [re.escape(name) + _STAMP]
        if stem and dot:
            within = _STAMP.replace("stamp", "inner") + re.escape(dot + suffix)
            patterns.append(re.escape(stem) + within)
        self._pattern = re.compile("|".join(patterns))
        self._older_is = 1 if numbers == "higher-is-older" else -1

    def is_rotated(self, name: str) -> bool:
        """Return whether this is the name of an older generation, as rotation gives them."""
        return self._pattern.fullmatch(name) is not None

    def is_compressed(self, name: str) -> bool:
        """Return whether this is the name of an older generation that was compressed."""
        match = _COMPRESSED.fullmatch(name)
        return match is not None and self.is_rotated(match["name"])

    def in_order(self, generations: Iterable[Generation]) -> list[Generation]:
        numbered: list[Generation] = []
        others: list[Generation] = []
        for generation in generations:
            (others if self._number(generation) is None else numbered).append(generation)
        numbered.sort(key=lambda found: -self._older_is * (self._number(found) or 0))
        others.sort(key=lambda found: (found.modified_ns, self._stamp(found.name)))
        return list(heapq.merge(others, numbered, key=lambda found: found.modified_ns))

    def following(
        self,
        current: Generation | None,
        generations: Sequence[Generation],
        older: OlderGenerations,
    ) -> Following:
        """Return what comes after `current`; all generations come after None."""
        before = [] if current is None else [Listed.of(current)]
        unread, read, passed_over = [], [], []
        for found in filter(lambda found: self.is_rotated(found.name), generations):
            is_current = current is not None and found.is_same_file(current.device, current.inode)
            if is_current or found in older or self._has_grown(found, current, older):
                read.append(found)
            elif self._is_beyond(found, current, 1):
                passed_over.append(PassedOver(found, _MISNUMBERED))
            elif problem := why_no_lines("", found.head or b"", is_text=True):
                passed_over.append(PassedOver(found, problem))
            else:
                unread.append(found)
        left = [each.generation for each in passed_over]
        waiting = [Listed.of(found) for found in unread]
        before += [*older.listed, *map(Listed.of, read)]
        compressed = []
        for found in filter(lambda found: self.is_compressed(found.name), generations):
            if any(listed.is_content_of(found) for listed in waiting):
                continue  # until that one is read, or gone
            compressed.append(found)
            if not (
                found in older
                or any(listed.is_content_of(found) for listed in before)
                or _is_without_lines(found, current)
            ):
                passed_over.append(PassedOver(found, _COMPRESSED_UNREAD))
        misnumbered = [found for found in read if self._is_beyond(found, current, -1)]
        return Following(
            unread=tuple(self.in_order(unread)),
            older=(*read, *left, *compressed),
            passed_over=tuple(passed_over),
            misnumbered=tuple(misnumbered),
        )

    def _has_grown(
        self, found: Generation, current: Generation | None, older: OlderGenerations
    ) -> bool:
        """Return whether a short older file was written on, and this is no other of its inode.

        A date stays with its file. A number moves on, so it tells by being on the older side.
        """
        listed = older.that_may_be(found)
        if listed is None:
            return False
        if self._number(found) is None:
            return listed.name == found.name
        return self._is_beyond(found, current, 1)

    def _is_beyond(self, other: Generation, current: Generation | None, side: int) -> bool:
        """Return whether a number is on the older side of the current one, or on the younger."""
        mine = None if current is None else self._number(current)
        number = self._number(other)
        if mine is None or number is None:
            return False
        return side * self._older_is * (number - mine) > 0

    def _stamp(self, name: str) -> tuple[int, ...]:
        match = self._pattern.fullmatch(name)
        stamp = "" if match is None else next(filter(None, match.groups()))
        return tuple(int(number) for number in re.findall("[0-9]+", stamp))

    def _number(self, generation: Generation) -> int | None:
        match = self._pattern.fullmatch(generation.name)
        stamp = "" if match is None else next(filter(None, match.groups()))
        return int(stamp) if _NUMBER.fullmatch(stamp) else None


@dataclass(frozen=True, slots=True)
class Following:
    """What comes after a generation."""

    unread: tuple[Generation, ...]  # generations to be read, oldest first
    older: tuple[Generation, ...]  # all other generations there, with the current one
    passed_over: tuple[PassedOver, ...]  # the older ones that were not read
    misnumbered: tuple[Generation, ...]  # the older ones whose number says that they are younger


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A generation that was not read, and never will be."""

    generation: Generation
    reason: str


class OlderGenerations(msgspec.Struct, frozen=True, omit_defaults=True):
    """The generations that are older than a file: those that were read, or there before it."""

    listed: tuple[Listed, ...] = ()
    before_ns: int = -1  # all that were last written up to then are older, too

    def __contains__(self, generation: Generation) -> bool:
        return generation.modified_ns <= self.before_ns or any(
            listed.is_of(generation) for listed in self.listed
        )

    def that_may_be(self, generation: Generation) -> Listed | None:
        """Return the listed generation that this one may be, written on since."""
        return next((listed for listed in self.listed if listed.may_be_of(generation)), None)

    def of(self, generations: Iterable[Generation]) -> Self:
        """Return other generations in the same form: the last written, if they are too many."""
        known = sorted(generations, key=lambda found: found.modified_ns)
        left_out = known[:-MAX_LISTED]
        return type(self)(
            tuple(Listed.of(found) for found in known[-MAX_LISTED:]),
            max([self.before_ns, *(found.modified_ns for found in left_out)]),
        )


class Listed(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A generation as a position lists it. An inode alone may be another file's by now."""

    inode: int
    head_length: int  # how many of its first bytes `head` covers; -1 if they could not be read
    head: str  # digest of its first bytes
    name: str = ""  # its name, if it is short: other short files may begin as it does

    @classmethod
    def of(cls, generation: Generation) -> Self:
        head = generation.head
        if head is None:
            return cls(generation.inode, -1, "")
        name = generation.name if len(head) < HEAD_BYTES else ""
        return cls(generation.inode, len(head), digest(head), name)

    def is_of(self, generation: Generation) -> bool:
        """Return whether it is this file; if that has grown, only a whole head tells."""
        head = generation.head
        if self.inode != generation.inode:
            return False
        if head is None or self.head_length < HEAD_BYTES:
            return self.head_length == (-1 if head is None else len(head)) and (
                head is None or digest(head) == self.head
            )
        return digest(head) == self.head

    def may_be_of(self, generation: Generation) -> bool:
        """Return whether it may be this file, written on since."""
        head = generation.head
        return (
            self.inode == generation.inode
            and head is not None
            and 0 < self.head_length < len(head)
            and digest(head[: self.head_length]) == self.head
        )

    def is_content_of(self, generation: Generation) -> bool:
        """Return whether a compressed generation holds what this file held."""
        head = generation.head
        return head is not None and len(head) == self.head_length and digest(head) == self.head


@dataclass(frozen=True, slots=True)
class Generation:
    """One file of a rotation."""

    name: str  # its name now; empty if it was removed
    device: int
    inode: int
    modified_ns: int  # when it was last written
    # the first `HEAD_BYTES` of its content behind a hole, uncompressed; None if they cannot be read
    head: bytes | None = b""

    def is_same_file(self, device: int, inode: int) -> bool:
        """Return whether it is the file with this device and inode."""
        return (self.device, self.inode) == (device, inode)


def files_between(first: str, last: str, names: Iterable[str]) -> list[str]:
    """Return the files that a link pointed to on its way from one to the other, in order.

    Those are known only by a number, as `1.log` between `0.log` and `2.log`, or by a date.
    """
    shape, low = _numbers_of(first)
    high = _numbers_of(last)[1]
    if not (_NUMBER.fullmatch(first.partition(".")[0]) or _digits(first) >= _DATE_DIGITS):
        return []
    between = {
        name: numbers
        for name in names
        for found, numbers in [_numbers_of(name)]
        if found == shape and low < numbers < high
    }
    return sorted(between, key=lambda name: between[name])


def _numbers_of(name: str) -> tuple[str, tuple[int, ...]]:
    """Return a name with each number as 0, and the numbers."""
    return re.sub("[0-9]+", "0", name), tuple(int(found) for found in re.findall("[0-9]+", name))


def _digits(name: str) -> int:
    return sum(character.isdecimal() for character in name)


def _is_without_lines(compressed: Generation, current: Generation | None) -> bool:
    """Return whether it has no lines to be read: a program that compresses keeps the time."""
    if compressed.head is not None:
        return compressed.head == b""
    return current is not None and compressed.modified_ns <= current.modified_ns

"""Older generations are told by their names; what was not there before is younger."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sequitur.producer.sources._head import HEAD_BYTES
from sequitur.producer.sources._rotation import (
    MAX_LISTED,
    Generation,
    OlderGenerations,
    Rotation,
    files_between,
)
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.producer.sources._rotation import RotatedNumbers


def _generation(name: str, modified_ns: int = 0, head: bytes | None = None) -> Generation:
    inode = int(hashlib.md5(name.encode()).hexdigest()[:8], 16)
    return Generation(name, 1, inode, modified_ns, name.encode() if head is None else head)


def _names(generations: Iterable[Generation]) -> list[str]:
    return [found.name for found in generations]


@pytest.mark.parametrize(
    "name",
    ["app.log.1", "app.log.12", "app.log-20261120", "app.log.2026-11-20_10", "app-2026-11-20.log"],
)
def test_rotated_names_are_known(name: str) -> None:
    """Numbers and dates, behind the name or before its suffix; compressed ones, too."""
    assert Rotation("app.log").is_rotated(name)
    assert Rotation("app.log").is_compressed(name + ".gz")


@pytest.mark.parametrize(
    "name",
    ["app.log", "app.log.gz", "app.log.1.gz", "app.log.bak", "app.logs.1", "other.log.1", "app.1"],
)
def test_other_names_are_not(name: str) -> None:
    """A neighbour is not read by mistake, nor a compressed file."""
    assert not Rotation("app.log").is_rotated(name)


def test_the_age_of_dates_is_the_last_write() -> None:
    """Whatever the names say: they are in a local time."""
    young, old = _generation("app.log-20261101", 20), _generation("app.log-20261102", 10)
    assert Rotation("app.log").in_order([young, old]) == [old, young]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ("higher-is-older", ["app.log.10", "app.log.2", "app.log.1"]),
        ("higher-is-newer", ["app.log.1", "app.log.2", "app.log.10"]),
    ],
)
def test_numbers_are_the_order_whatever_the_clock_was(
    numbers: RotatedNumbers, expected: list[str]
) -> None:
    """A clock that was set back between two rotations changes nothing."""
    generations = [_generation(name, len(name)) for name in ("app.log.1", "app.log.10")]
    generations.append(_generation("app.log.2", 99))
    assert _names(Rotation("app.log", numbers).in_order(generations)) == expected


def test_dates_decide_within_one_instant() -> None:
    """A lower date is older; a year is a date."""
    for dates in (
        ["app.log-20261119", "app.log-20261120", "app.log-20261120.1"],
        ["app.log.2025", "app.log.2026"],
    ):
        generations = [_generation(name) for name in reversed(dates)]
        assert _names(Rotation("app.log").in_order(generations)) == dates


def test_what_was_not_there_is_younger() -> None:
    """Not the file itself, none that was there, none that is no generation."""
    current = _generation("app.log.2", 20)
    there = _generation("app.log.3", 10)
    folder = [
        current,
        there,
        _generation("app.log.1", 5),
        _generation("app.log.bak", 40),
        _generation("app.log", 50),
    ]
    following = Rotation("app.log").following(current, folder, OlderGenerations().of([there]))
    assert _names(following.unread) == ["app.log.1"]
    assert set(following.older) == {current, there}
    assert not following.passed_over
    assert not following.misnumbered


def test_a_file_that_was_given_the_inode_of_an_older_one_is_new() -> None:
    """Rotation removes the oldest file, and the file system gives its number to the next."""
    removed = _generation("app.log.3", 10)
    older = OlderGenerations().of([removed])
    new = replace(removed, name="app.log.1", head=b"other lines")
    assert Rotation("app.log").following(None, [new], older).unread == (new,)


@pytest.mark.parametrize("head", [b"#Fields: a b\n", b"x" * HEAD_BYTES])
@pytest.mark.parametrize("name", ["app.log.3", "app.log-20261120"])
def test_an_older_file_that_is_written_on_is_not_new(name: str, head: bytes) -> None:
    """Whoever had it open may have ended after it was left."""
    there, current = _generation(name, 10, head), _generation("app.log.1")
    older = OlderGenerations().of([there])
    grown = replace(there, head=(head + b"late\n")[:HEAD_BYTES], modified_ns=99)
    following = Rotation("app.log").following(current, [grown, current], older)
    assert set(following.older) == {grown, current}
    assert not following.unread
    assert not following.passed_over


@pytest.mark.parametrize("kept", ["app.log.3", "app.log-20261120"])
@pytest.mark.parametrize("new", ["app.log.1", "app.log-20261121"])
def test_another_file_that_begins_as_a_short_one_did_is_new(kept: str, new: str) -> None:
    """All may begin with the same line, and a quiet day has no other."""
    there, current = _generation(kept, 10, b"#Fields: a b\n"), _generation("app.log.2")
    older = OlderGenerations().of([there])
    other = replace(there, name=new, head=b"#Fields: a b\n1 2\n")
    following = Rotation("app.log").following(current, [other, current], older)
    assert following.unread == (other,)


def test_an_empty_generation_that_was_written_since_is_new() -> None:
    empty = _generation("app.log.1", 10, head=b"")
    older = OlderGenerations().of([empty])
    assert Rotation("app.log").following(None, [empty], older).unread == ()
    written = replace(empty, head=b"line")
    assert Rotation("app.log").following(None, [written], older).unread == (written,)


def test_a_number_that_contradicts_what_was_read_is_told() -> None:
    """With numbers that count upwards: one was there before, the other cannot be older."""
    current = _generation("app.log.3")
    there, new = _generation("app.log.2"), _generation("app.log.4")
    older = OlderGenerations().of([there])
    following = Rotation("app.log").following(current, [current, there, new], older)
    assert following.misnumbered == (there,)
    assert [passed.generation for passed in following.passed_over] == [new]
    assert following.unread == ()
    asked = Rotation("app.log", "higher-is-newer").following(current, [current, there, new], older)
    assert asked.unread == (new,)
    assert not asked.misnumbered
    assert not asked.passed_over


def test_a_compressed_generation_that_was_not_read_is_passed_over() -> None:
    """And told once; one that holds what was read is not, nor one that is being written."""
    rotation = Rotation("app.log")
    read = _generation("app.log.4", head=b"read")
    current = _generation("app.log.1", head=b"current")
    older = OlderGenerations().of([read])
    folder = [
        current,
        _generation("app.log.2.gz", head=b"lost"),
        _generation("app.log.4.gz", head=b"read"),
        _generation("app.log.1.gz", head=b"current"),
        _generation("app.log.5.gz", head=b""),
    ]
    following = rotation.following(current, folder, older)
    assert [passed.generation.name for passed in following.passed_over] == ["app.log.2.gz"]
    again = rotation.following(None, folder, older.of(following.older))
    assert again.passed_over == ()


def test_a_generation_that_is_being_compressed_is_read() -> None:
    """While both are there the compressed one is neither read nor passed over for good."""
    unread = _generation("app.log.1", head=b"lines")
    compressed = _generation("app.log.1.gz", head=b"lines")
    rotation = Rotation("app.log")
    first = rotation.following(None, [unread, compressed], OlderGenerations())
    assert first.unread == (unread,)
    assert first.passed_over == ()
    later = rotation.following(None, [compressed], OlderGenerations().of(first.older))
    assert [passed.generation for passed in later.passed_over] == [compressed]


def test_a_compressed_file_that_cannot_be_looked_into_goes_by_its_time() -> None:
    """Programs that compress keep the time of the last write."""
    current = _generation("app.log.1", 20)
    old, new = (Generation(f"app.log-{at}.zst", 1, at, at, None) for at in (10, 30))
    following = Rotation("app.log").following(current, [current, old, new], OlderGenerations())
    assert [passed.generation for passed in following.passed_over] == [new]


def test_a_long_list_is_cut_and_its_rest_goes_by_time() -> None:
    """A year of daily files is no reason for long positions."""
    there = [_generation(f"app.log.{number}", 1_000 - number) for number in range(1, 200)]
    older = OlderGenerations().of(there)
    assert len(older.listed) == MAX_LISTED
    assert Rotation("app.log").following(None, there, older).unread == ()
    new = _generation("app.log.1000", 1_000)
    assert Rotation("app.log").following(None, [*there, new], older).unread == (new,)


@pytest.mark.parametrize(
    ("first", "last", "between"),
    [
        ("0.log", "2.log", ["1.log"]),
        ("8.log", "11.log", ["9.log", "10.log"]),
        ("app-2026-11-23.log", "app-2026-11-25.log", ["app-2026-11-24.log"]),
        ("2.log", "0.log", []),
        ("worker-1.log", "worker-3.log", []),
        ("app.log", "other.log", []),
    ],
)
def test_a_link_passes_over_numbers_and_dates(first: str, last: str, between: list[str]) -> None:
    """Of a container that was started twice; workers with numbers are others."""
    names = ["0.log", "1.log", "2.log", "9.log", "10.log", "11.log", "1.txt"]
    names += [f"app-2026-11-{day}.log" for day in (22, 23, 24, 25)]
    names += ["worker-1.log", "worker-2.log", "worker-3.log"]
    assert files_between(first, last, names) == between


class RotatedFile(RuleBasedStateMachine):
    """A file that is rotated, and a reader that goes from each generation to the next.

    Generations are numbered from 0 in the order in which they were written; the last is written.
    """

    numbers: RotatedNumbers = "higher-is-older"

    def __init__(self) -> None:
        super().__init__()
        self.rotation = Rotation("app.log", self.numbers)
        self.clock = 1_000_000
        self.inodes = iter(range(1, 10**9))
        self.given_back: list[int] = []
        self.files: list[Generation] = []
        self.read: list[int] = []
        self.told: set[int] = set()
        self.lost: set[int] = set()
        self.compressed: set[int] = set()

    def _next_inode(self) -> int:
        return self.given_back.pop() if self.given_back else next(self.inodes)

    def _folder(self) -> list[Generation]:
        """All files that are there, under their names of now."""
        there = [found for found in self.files[:-1] if found.inode]
        named = []
        for place, found in enumerate(there):
            falling = len(there) - place
            number = falling if self.numbers == "higher-is-older" else place + 1
            named.append(replace(found, name=f"app.log.{number}{found.name}"))
        return [*named, replace(self.files[-1], name="app.log")]

    def _take(self, place: float) -> int | None:
        """One generation that is neither written nor being read, compressed nor removed."""
        there = [
            number
            for number, found in enumerate(self.files[:-1])
            if number != self.read[-1] and found.inode and not found.name
        ]
        return there[int(place * (len(there) - 1))] if there else None

    @initialize(there=st.integers(0, 3))
    def start(self, there: int) -> None:
        for _ in range(there + 1):
            self.rotate()
        self.read = [there]
        self.older = OlderGenerations().of(self._folder()[:-1])

    @rule()
    def rotate(self) -> None:
        """A new file; the clock goes on."""
        self.clock += 1
        head = b"generation %d" % len(self.files)
        self.files.append(Generation("", 1, self._next_inode(), self.clock, head))

    @rule()
    def set_clock_back(self) -> None:
        """By more than all that was written took."""
        self.clock -= 1_000

    @rule(place=st.floats(0, 1))
    def remove(self, place: float) -> None:
        """Rotation removes old files; others may be given the inode."""
        number = self._take(place)
        if number is not None:
            self.given_back.append(self.files[number].inode)
            self.files[number] = replace(self.files[number], inode=0)
            if number > self.read[-1]:
                self.lost.add(number)

    @rule(place=st.floats(0, 1))
    def compress(self, place: float) -> None:
        """As another file, with the time of the old one."""
        number = self._take(place)
        if number is not None:
            self.given_back.append(self.files[number].inode)
            inode = next(self.inodes)
            self.files[number] = replace(self.files[number], name=".gz", inode=inode)
            if number > self.read[-1]:
                self.compressed.add(number)

    @rule()
    def restart(self) -> None:
        self.older = msgspec.json.decode(msgspec.json.encode(self.older), type=OlderGenerations)

    @rule()
    def read_on(self) -> None:
        """Go to what follows, unless the file is still written."""
        current = self.files[self.read[-1]]
        if current is self.files[-1]:
            return
        folder = self._folder()
        name = next(found.name for found in folder if found.head == current.head)
        following = self.rotation.following(replace(current, name=name), folder, self.older)
        assert following.misnumbered == ()
        for passed in following.passed_over:
            self.told.add(self._number_of(passed.generation))
        self.read.append(self._number_of((*following.unread, folder[-1])[0]))
        self.older = self.older.of(following.older)

    def _number_of(self, generation: Generation) -> int:
        return next(n for n, found in enumerate(self.files) if found.head == generation.head)

    def teardown(self) -> None:
        """Read to the end: all was read in order, but for what was told or removed."""
        if not self.read:
            return
        while self.read[-1] < len(self.files) - 1:
            self.read_on()
        missing = self.lost | self.compressed
        assert self.read == [n for n in range(self.read[0], len(self.files)) if n not in missing]
        assert self.told == {n for n in self.compressed if self.files[n].inode}


class FileThatCountsUpwards(RotatedFile):
    """The same with log4j's numbers."""

    numbers = "higher-is-newer"


TestRotatedFile = pytest.mark.promise("in-file-followed-rotated")(RotatedFile.TestCase)
TestFileThatCountsUpwards = FileThatCountsUpwards.TestCase

"""The locked jars: exactly those, verified, fetched once."""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import JarError, JarFetchError, JarHashError
from sequitur.pipelines.jars import (
    GROUPS,
    LOCK_FILE,
    LockedJar,
    cache_directory,
    locked_jars,
    read_lock,
    read_roots,
    write_lock,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CONTENT = {"org.one:alpha:1.0": b"alpha", "org.two:beta_2.13:2.0-rc1": b"beta"}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Repository:
    """Stands in for Ivy: hands out contents and counts how often it is asked."""

    content: dict[str, bytes] = field(default_factory=lambda: dict(_CONTENT))
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, jars: Sequence[LockedJar], target: Path) -> None:
        self.asked.append([jar.coordinates for jar in jars])
        for jar in jars:
            if jar.coordinates in self.content:
                path = target / jar.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.content[jar.coordinates])


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    path = tmp_path / "jars.lock"
    lines = [f'"{name}" = "{_sha256(content)}"' for name, content in _CONTENT.items()]
    path.write_text("\n".join(["[broker]", *lines]))
    return path


def test_missing_jars_are_fetched_once(lock_file: Path, tmp_path: Path) -> None:
    """A second run asks nobody and gives the same paths."""
    repository = Repository()
    first = locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    second = locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    assert repository.asked == [list(_CONTENT)]
    assert second == first
    assert [path.read_bytes() for path in first] == list(_CONTENT.values())
    assert [path.name for path in first] == ["alpha-1.0.jar", "beta_2.13-2.0-rc1.jar"]


def test_a_wrong_jar_is_refused_by_name(lock_file: Path, tmp_path: Path) -> None:
    """Both hashes are told, the file is gone, and what was right is not fetched again."""
    repository = Repository()
    repository.content["org.one:alpha:1.0"] = b"forged"
    with pytest.raises(JarHashError) as refused:
        locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    assert "org.one:alpha:1.0" in str(refused.value)
    assert _sha256(b"alpha") in str(refused.value)
    assert _sha256(b"forged") in str(refused.value)
    assert "beta" not in str(refused.value)
    assert [path.name for path in tmp_path.rglob("*.jar")] == ["beta_2.13-2.0-rc1.jar"]

    repository.content = dict(_CONTENT)
    locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    assert repository.asked[1:] == [["org.one:alpha:1.0"]]


def test_a_jar_changed_in_the_cache_is_refused(lock_file: Path, tmp_path: Path) -> None:
    """What was verified once is not trusted for ever: a changed file is found and removed."""
    repository = Repository()
    alpha, _ = locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    alpha.write_bytes(b"Alpha")
    os.utime(alpha, ns=(0, 1))
    with pytest.raises(JarHashError, match=_sha256(b"Alpha")):
        locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    assert not alpha.exists()
    locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    assert alpha.read_bytes() == b"alpha"


def test_a_new_hash_in_the_lock_counts(lock_file: Path, tmp_path: Path) -> None:
    """The lock decides, not what was verified against an earlier one."""
    repository = Repository()
    locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    lock_file.write_text(lock_file.read_text().replace(_sha256(b"beta"), _sha256(b"new")))
    with pytest.raises(JarHashError, match="beta"):
        locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)


def test_a_jar_that_does_not_arrive_is_named(lock_file: Path, tmp_path: Path) -> None:
    repository = Repository()
    del repository.content["org.one:alpha:1.0"]
    with pytest.raises(JarFetchError, match=r"org\.one:alpha:1\.0"):
        locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)


def test_damaged_stamps_cost_only_time(lock_file: Path, tmp_path: Path) -> None:
    """A record cut short by a crash means that all is verified again, and nothing fetched."""
    repository = Repository()
    jars = locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository)
    (stamps,) = tmp_path.rglob("verified-*.json")
    stamps.write_text('{"org.')
    assert locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository) == jars
    assert len(repository.asked) == 1


def test_programs_at_once_fetch_once(lock_file: Path, tmp_path: Path) -> None:
    """Who comes second waits, and finds all there."""
    repository = Repository()
    results: list[list[Path]] = []

    def get() -> None:
        results.append(locked_jars("broker", lock_file=lock_file, cache=tmp_path, fetch=repository))

    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(repository.asked) == 1
    assert results == [results[0]] * 4


@pytest.mark.parametrize(
    ("coordinates", "sha256"),
    [
        ("org.one:alpha", "0" * 64),
        ("../../etc:alpha:1", "0" * 64),
        ("org.one:..:1", "0" * 64),
        ("org.one:alpha:1:extra", "0" * 64),
        ("org.one:alpha:1", "0" * 63),
        ("org.one:alpha:1", "G" * 64),
    ],
)
def test_a_lock_that_makes_no_sense_is_refused(
    tmp_path: Path, coordinates: str, sha256: str
) -> None:
    """Coordinates become paths: none may lead out of the cache."""
    lock = tmp_path / "jars.lock"
    lock.write_text(f'[broker]\n"{coordinates}" = "{sha256}"\n')
    with pytest.raises(JarError, match="is not"):
        read_lock("broker", lock)


def test_a_lock_without_the_group_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text("[broker]\n")
    with pytest.raises(JarError, match=r"no group \[spark\]"):
        read_lock("spark", lock)


def test_the_project_s_lock_holds_its_roots() -> None:
    roots = read_roots()
    assert tuple(roots) == GROUPS
    for group in GROUPS:
        locked = {jar.coordinates for jar in read_lock(group)}
        assert {*roots[group]} <= locked
    assert "://" not in LOCK_FILE.read_text()


_LOCK = f"""\
[roots]
broker = ["org.one:alpha:1.0", "org.two:beta:2.0"]
spark = ["org.three:gamma:3.0"]

[broker]
"org.one:alpha:1.0" = "{"a" * 64}"

[spark]
"org.three:gamma:3.0" = "{"c" * 64}"
"""


@pytest.mark.promise("cli-version-locked-jars")
def test_a_root_is_moved_by_one_command(tmp_path: Path) -> None:
    """Its group is resolved with the new version; the others are kept as they were verified."""
    lock = tmp_path / "jars.lock"
    lock.write_text(_LOCK)
    asked: list[tuple[list[str], bool]] = []

    def resolve(roots: Sequence[str], pattern: Path, transitive: bool) -> None:
        asked.append((list(roots), transitive))
        for coordinates in (*roots, "org.four:delta:4.0"):
            pattern.with_name(f"{coordinates}.jar").write_bytes(coordinates.encode())

    write_lock(["org.one:alpha:1.1"], lock_file=lock, resolve=resolve)
    assert asked == [(["org.one:alpha:1.1", "org.two:beta:2.0"], True)]
    assert read_roots(lock)["broker"] == ["org.one:alpha:1.1", "org.two:beta:2.0"]
    assert {jar.coordinates: jar.sha256 for jar in read_lock("broker", lock)} == {
        name: _sha256(name.encode())
        for name in ("org.four:delta:4.0", "org.one:alpha:1.1", "org.two:beta:2.0")
    }
    assert [jar.sha256 for jar in read_lock("spark", lock)] == ["c" * 64]


@pytest.mark.promise("cli-version-locked-jars")
def test_a_move_that_cannot_be_made_leaves_the_lock(tmp_path: Path) -> None:
    """What is no root is refused by name, and so is a version that cannot be had."""
    lock = tmp_path / "jars.lock"
    lock.write_text(_LOCK)

    def resolve(roots: Sequence[str], _pattern: Path, _transitive: bool) -> None:
        raise JarFetchError(f"not found: {roots[0]}")

    with pytest.raises(JarError, match=r"no root of jars\.lock is moved by org\.one:alfa:1\.1"):
        write_lock(["org.one:alfa:1.1"], lock_file=lock, resolve=resolve)
    with pytest.raises(JarFetchError, match=r"not found: org\.three:gamma:9"):
        write_lock(["org.three:gamma:9"], lock_file=lock, resolve=resolve)
    assert lock.read_text() == _LOCK


def test_the_cache_is_where_the_user_says() -> None:
    """SEQUITUR_CACHE first, then the user's cache folder."""
    environ = {"SEQUITUR_CACHE": "/own", "XDG_CACHE_HOME": "/cache"}
    assert str(cache_directory(environ)) == "/own"
    del environ["SEQUITUR_CACHE"]
    assert str(cache_directory(environ)) == "/cache/sequitur"

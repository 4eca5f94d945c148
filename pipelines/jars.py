"""The jars of the broker and of Spark's Kafka connector, exactly as the lock names them.

``jars.lock`` holds the coordinates and the SHA-256 of each jar, and no host name: Ivy, which
pyspark ships, fetches from where it fetches by default, or from where the Ivy settings file named
by ``SEQUITUR_IVY_SETTINGS`` says (a mirror, a proxy). The jars are kept outside the tree, in
``$SEQUITUR_CACHE`` or else the user's cache folder, and shared by all checkouts.

    sequitur setup                                  fetch and verify all but s3 and hdfs
    python -m sequitur.pipelines.jars list broker   the paths of a group's jars, one a line
    python -m sequitur.pipelines.jars lock          resolve its roots, and write the lock anew
    python -m sequitur.pipelines.jars lock org.apache.kafka:kafka_2.13:4.4.0   with a root moved
"""

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from sequitur.base.process import user_folder
from sequitur.base.retry import Backoff, Retry, any_of
from sequitur.base.standard_streams import reserve_descriptors
from sequitur.base.text import renamed
from sequitur.errors import JarError, JarFetchError, JarHashError, SequiturError
from sequitur.pipelines.java import find_java
from sequitur.pipelines.store import durable

_ROOTS: Final = "roots"
_ASKED_FOR: Final = ("s3", "hdfs")
"""Groups that are left out: a checkpoint in S3 asks for the one, a test on HDFS for the other."""
LOCK_FILE: Final = Path(__file__).with_name("jars.lock")

GROUPS: Final = ("broker", "spark", "s3", "hdfs")
"""What jars are for: the embedded broker, with log4j's binding by which Kafka logs; Spark's Kafka
connector; checkpoints in S3, to which Spark writes its own part (the SDK has 690 MB); and tests of
HDFS, for which a cluster in one JVM is one of Hadoop's own tests, and asks for JUnit.

Of Spark's token provider 4.2.0 is missing from some mirrors; 4.0.0 works with connector 4.2.0.
"""
_TRANSITIVE: Final = ("broker",)
"""Groups whose dependencies come along: Spark itself brings those of the others, and some of them
in other versions."""

_FETCH_TIMEOUT_S: Final = 600
_HASH: Final = re.compile("[0-9a-f]{64}")
# Each part goes into a path: it must not lead out of the cache.
_PART: Final = r"([\w-][\w.-]*)"
_COORDINATES: Final = re.compile(f"{_PART}:{_PART}:{_PART}", re.ASCII)
_LOG_LINES_SHOWN: Final = 15
_RETRY: Final = Retry(
    most=3,
    backoff=Backoff(initial_ms=0, jitter=0),
    tell=lambda why, _left_s: _log(f"{why}\nfetching again"),
)


@dataclass(frozen=True, slots=True)
class LockedJar:
    organisation: str
    name: str
    revision: str
    sha256: str

    @classmethod
    def parse(cls, coordinates: str, sha256: str) -> "LockedJar":
        """Read ``organisation:name:revision`` and a hash."""
        match = _COORDINATES.fullmatch(coordinates)
        if match is None:
            raise JarError(f"{coordinates!r} is not organisation:name:revision")
        if not _HASH.fullmatch(sha256):
            raise JarError(f"{coordinates}: {sha256!r} is not a SHA-256 in lower-case hexadecimal")
        return cls(match[1], match[2], match[3], sha256)

    @property
    def coordinates(self) -> str:
        """``organisation:name:revision``."""
        return f"{self.organisation}:{self.name}:{self.revision}"

    @property
    def file(self) -> str:
        """The path below the folder of the jars."""
        return f"{self.organisation}/{self.name}-{self.revision}.jar"


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``$SEQUITUR_CACHE``, or else ``sequitur`` in the user's cache folder."""
    own = environ.get("SEQUITUR_CACHE")
    if own:
        return Path(own).absolute()
    cache = user_folder("XDG_CACHE_HOME", ".cache", environ=environ, instead="SEQUITUR_CACHE")
    return (cache / "sequitur").absolute()


def read_lock(group: str, lock_file: Path = LOCK_FILE) -> list[LockedJar]:
    try:
        jars = tomllib.loads(lock_file.read_text("utf-8"))[group]
    except (OSError, ValueError) as error:
        raise JarError(f"{lock_file} cannot be read: {error}") from error
    except KeyError:
        raise JarError(f"{lock_file} has no group [{group}]") from None
    return [LockedJar.parse(coordinates, sha256) for coordinates, sha256 in jars.items()]


def read_roots(lock_file: Path = LOCK_FILE) -> dict[str, list[str]]:
    """Return the coordinates from which the lock was resolved, by group."""
    try:
        roots: dict[str, list[str]] = tomllib.loads(lock_file.read_text("utf-8"))[_ROOTS]
    except (OSError, ValueError, KeyError) as error:
        raise JarError(f"the roots of {lock_file} cannot be read: {error}") from error
    return roots


def jars_of_spark(checkpoint: str) -> str:
    """Return the paths of the jars that Spark needs for a job, as its options take them."""
    groups = ["spark", "s3"] if checkpoint.startswith(("s3:", "s3a:", "s3n:")) else ["spark"]
    return ",".join(str(path) for group in groups for path in locked_jars(group))


def locked_jars(
    group: str,
    *,
    lock_file: Path = LOCK_FILE,
    cache: Path | None = None,
    fetch: Callable[[Sequence[LockedJar], Path], None] | None = None,
) -> list[Path]:
    """Return the paths of a group's jars, each verified, having fetched those that were missing.

    A jar once verified is taken as such until its size or its time of change differs, so that a
    second call costs milliseconds and starts no Java. Calls at the same time wait for each other.
    """
    jars = read_lock(group, lock_file)
    folder = (cache or cache_directory()) / "jars"
    verified = folder / f"verified-{group}.json"
    if _stamps(jars, folder) != _read_stamps(verified):
        with _locked(folder):
            _refuse_wrong(jars, folder)
            missing = [jar for jar in jars if not (folder / jar.file).exists()]
            if missing:
                _bring_in(missing, folder, fetch or _fetch_by_ivy)
            durable.replace(verified, json.dumps(_stamps(jars, folder), indent=1))
    return [folder / jar.file for jar in jars]


def _stamps(jars: Iterable[LockedJar], folder: Path) -> dict[str, list[int | str]] | None:
    """Return size, time of change and hash of each file; None if one is missing."""
    stamps: dict[str, list[int | str]] = {}
    for jar in jars:
        try:
            stat = (folder / jar.file).stat()
        except OSError:
            return None
        stamps[jar.file] = [stat.st_size, stat.st_mtime_ns, jar.sha256]
    return stamps


def _read_stamps(path: Path) -> object:
    """Return the stamps of the last check; a damaged file counts as none, and all is verified."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes; the lock ends with the process that holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise JarError(f"the cache of the jars, {folder}, cannot be used: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_wrong(jars: Iterable[LockedJar], folder: Path) -> None:
    """Remove and report each jar in the folder that is not the locked one."""
    wrong = []
    for jar in jars:
        path = folder / jar.file
        if path.exists() and (actual := _sha256(path)) != jar.sha256:
            path.unlink()
            wrong.append(
                f"{jar.coordinates}: the lock has SHA-256 {jar.sha256}, the file had {actual}"
            )
    if wrong:
        raise JarHashError(
            "refused and removed (the next run fetches it again): " + "; ".join(wrong)
        )


def _bring_in(
    missing: Sequence[LockedJar],
    folder: Path,
    fetch: Callable[[Sequence[LockedJar], Path], None],
) -> None:
    """Fetch into a folder aside, verify there, and then move the jars to where users look."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as name:
        aside = Path(name)
        fetch(missing, aside)
        try:
            _refuse_wrong(missing, aside)
        finally:
            # Right ones are kept in any case, so that the next run has less to fetch.
            for jar in missing:
                if (aside / jar.file).exists():
                    (folder / jar.file).parent.mkdir(exist_ok=True)
                    (aside / jar.file).replace(folder / jar.file)
    absent = [jar.coordinates for jar in missing if not (folder / jar.file).exists()]
    if absent:
        raise JarFetchError(f"these jars did not arrive: {', '.join(absent)}")


def _fetch_by_ivy(jars: Sequence[LockedJar], target: Path) -> None:
    """Fetch exactly these jars.

    Without descriptors (``usepoms="false"``) Ivy asks once per jar instead of three times, and does
    not mind that some are packaged as ``bundle``; its own checksums add nothing to a SHA-256.
    """
    _log(f"fetching {len(jars)} jars into {target.parent}")
    wanted = [jar.coordinates for jar in jars]
    pattern = target / "[organisation]" / "[artifact]-[revision].[ext]"
    _RETRY.run(lambda: _run_ivy(wanted, pattern), any_of(JarFetchError))


def _run_ivy(wanted: Iterable[str], pattern: Path, transitive: bool | None = None) -> None:
    """Let Ivy resolve coordinates to paths of a pattern, with dependencies where `transitive`.

    Where that is None, no descriptors are asked for, either.
    """
    with tempfile.TemporaryDirectory(prefix="sequitur-ivy-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_ivy_module(wanted, transitive=bool(transitive)), "utf-8")
        (work / "settings.xml").write_text(
            _ivy_settings(descriptors=transitive is not None), "utf-8"
        )
        settings = os.environ.get("SEQUITUR_IVY_SETTINGS") or work / "settings.xml"
        command: list[str | Path] = [find_java().program, f"-Divy.home={work}"]
        command += ["-cp", _ivy_jar(), "org.apache.ivy.Main"]
        command += ["-settings", settings, "-ivy", work / "ivy.xml", "-cache", work / "cache"]
        command += ["-types", "jar", "bundle", "-confs", "default", "-retrieve", str(pattern)]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise JarFetchError(
                f"Ivy did not end within {_FETCH_TIMEOUT_S} s: is the network reachable?"
            ) from error
        if run.returncode != 0:
            said = [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
            raise JarFetchError(
                "Ivy could not fetch the jars. Its last lines:\n"
                + "\n".join(said[-_LOG_LINES_SHOWN:])
            )


def _ivy_jar() -> Path:
    """Return the Ivy that pyspark ships, without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    found = [jar for place in places or () for jar in Path(place, "jars").glob("ivy-*.jar")]
    if not found:
        raise JarError("pyspark is not installed here with its jars: Ivy comes with it")
    return found[0]


def _ivy_module(wanted: Iterable[str], *, transitive: bool) -> str:
    lines = ['<ivy-module version="2.0"><info organisation="sequitur" module="jars"/>']
    lines.append("<dependencies>")
    for coordinates in wanted:
        organisation, name, revision = map(quoteattr, coordinates.split(":"))
        lines.append(
            f"<dependency org={organisation} name={name} rev={revision} "
            f'transitive="{str(transitive).lower()}" conf="default->default"/>'
        )
    lines.append("</dependencies></ivy-module>")
    return "\n".join(lines)


def _ivy_settings(*, descriptors: bool) -> str:
    checksums = "" if descriptors else '<property name="ivy.checksums" value=""/>'
    options = "" if descriptors else ' usepoms="false" useMavenMetadata="false"'
    return (
        f'<ivysettings>{checksums}<settings defaultResolver="default"/><resolvers>'
        f'<ibiblio name="default" m2compatible="true"{options}/></resolvers></ivysettings>'
    )


def write_lock(
    moved: Sequence[str] = (),
    *,
    lock_file: Path = LOCK_FILE,
    resolve: Callable[[Sequence[str], Path, bool], None] | None = None,
) -> None:
    """Resolve the roots by Ivy, with descriptors, and write the lock from what that gave.

    The hashes are those of the jars as they arrive now: look at the difference before a commit.
    """
    before = read_roots(lock_file)
    after = {group: [_moved(root, moved) for root in roots] for group, roots in before.items()}
    strangers = set(moved) - {root for roots in after.values() for root in roots}
    if strangers:
        raise JarError(f"no root of {lock_file.name} is moved by {', '.join(sorted(strangers))}")
    command = "python -m sequitur.pipelines.jars lock"
    text = [f"# Written by `{command}`: coordinates and SHA-256 of each jar.", f"\n[{_ROOTS}]"]
    text += [f"{group} = {json.dumps(roots)}" for group, roots in after.items()]
    for group, roots in after.items():
        text.append(f"\n[{group}]")
        if moved and roots == before[group]:
            kept = read_lock(group, lock_file)
            text += [f'"{jar.coordinates}" = "{jar.sha256}"' for jar in kept]
            continue
        with tempfile.TemporaryDirectory(prefix="sequitur-lock-") as name:
            pattern = Path(name, "[organisation]:[artifact]:[revision].[ext]")
            (resolve or _run_ivy)(roots, pattern, group in _TRANSITIVE)
            text += [f'"{jar.stem}" = "{_sha256(jar)}"' for jar in sorted(Path(name).iterdir())]
    durable.replace(lock_file, "\n".join(text) + "\n")


def _moved(root: str, moved: Sequence[str]) -> str:
    """Return a root in the version that it is moved to, or the root itself."""
    module = root.rpartition(":")[0]
    return next((one for one in moved if one.rpartition(":")[0] == module), root)


def fetch_jars() -> None:
    """Fetch and verify the jars that are missing, except those of S3 and HDFS."""
    for group in GROUPS:
        if group not in _ASKED_FOR:
            locked_jars(group)


def _log(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m sequitur.pipelines.jars``; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sequitur.pipelines.jars", description="The locked jars."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{list,lock}")
    commands.add_parser("fetch")  # until 0.1.0
    listing = commands.add_parser("list", help="print the paths of a group's jars")
    listing.add_argument("group", choices=GROUPS)
    locking = commands.add_parser(
        "lock", help="write the lock again, from the jars that are available now"
    )
    locking.add_argument(
        "moved",
        nargs="*",
        help="roots in another version, such as org.apache.kafka:kafka_2.13:4.4.0",
    )
    given = parser.parse_args(arguments)
    try:
        if given.command == "lock":
            write_lock(given.moved)
        elif given.command == "fetch":
            _log(renamed(f"{parser.prog} fetch", "sequitur setup"))
            fetch_jars()
        else:
            sys.stdout.writelines(f"{jar}\n" for jar in locked_jars(given.group))
    except SequiturError as error:
        _log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    reserve_descriptors()
    sys.exit(main())

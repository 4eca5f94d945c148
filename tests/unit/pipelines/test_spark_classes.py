"""An archive of Spark's classes: used where there is one, and never in the way."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.pipelines import launch, spark_classes
from sequitur.pipelines.java import find_java

if TYPE_CHECKING:
    from pathlib import Path

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SEQUITUR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sequitur.pipelines.jars.locked_jars", lambda _group: [])
    return tmp_path / "cache" / "classes"


def _java_options(master: str = "local[2]", own: str = "") -> str:
    command = launch.spark_submit_command([], master=master, options={_JAVA_OPTIONS: own})
    (found,) = [word for word in command if word.startswith(_JAVA_OPTIONS)]
    return found


def _spark_ends(monkeypatch: pytest.MonkeyPatch, status: int, content: bytes | None) -> list[Any]:
    """Let spark-submit end so, having written this archive; the commands it was started with."""
    begun: list[Any] = []

    def run(command: list[str], **_how: Any) -> subprocess.CompletedProcess[bytes]:
        begun.append(command)
        (options,) = [word for word in command if "-XX:ArchiveClassesAtExit=" in word]
        if content is not None:
            with open(options.partition("AtExit=")[2], "wb") as file:  # noqa: PTH123 - a word
                file.write(content)
        if status:
            raise subprocess.CalledProcessError(status, command)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(subprocess, "run", run)
    return begun


def test_an_archive_is_written_once_and_used_by_local_jobs(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """A driver elsewhere has another Spark; and who says how classes are shared is heard."""
    find_java()  # asked once a process, by starting it
    assert "SharedArchiveFile" not in _java_options()
    begun = _spark_ends(monkeypatch, 0, b"classes")
    assert spark_classes.write_archive()
    assert spark_classes.write_archive()
    assert len(begun) == 1
    (archive,) = cache.glob("*.jsa")
    assert archive.read_bytes() == b"classes"
    assert f"-XX:SharedArchiveFile={archive} -Xlog:cds=off" in _java_options()
    assert "SharedArchiveFile" not in _java_options(master="spark://host:7077")
    assert "SharedArchiveFile" not in _java_options(own="-Xshare:off")


@pytest.mark.parametrize(("status", "content"), [(1, b"a part"), (0, None)])
def test_an_archive_that_was_not_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, cache: Path, status: int, content: bytes | None
) -> None:
    """Of a job that failed nothing is kept: a JVM that maps a part of one crashes."""
    find_java()
    _spark_ends(monkeypatch, status, content)
    assert not spark_classes.write_archive()
    assert not list(cache.glob("*.jsa"))
    assert "SharedArchiveFile" not in _java_options()


def test_archives_of_what_is_gone_are_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    """Each has the size of Spark's jars, and an environment may live for an hour."""
    find_java()
    cache.mkdir(parents=True)
    for name, home in (("spark-gone", tmp_path / "gone"), ("spark-there", tmp_path)):
        (cache / f"{name}.jsa").write_bytes(b"classes")
        (cache / f"{name}.of").write_text(str(home))
    _spark_ends(monkeypatch, 0, b"classes")
    assert spark_classes.write_archive()
    assert not (cache / "spark-gone.jsa").exists()
    assert (cache / "spark-there.jsa").exists()
    assert len(list(cache.glob("*.jsa"))) == 2


def test_a_cache_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    find_java()
    cache.parent.mkdir()
    cache.write_text("no folder")
    _spark_ends(monkeypatch, 0, b"classes")
    assert not spark_classes.write_archive()
    assert "SharedArchiveFile" not in _java_options()

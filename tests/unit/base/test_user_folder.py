"""A program asks for a home only where no path is given, and then says which path to give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sequitur.base.process import user_folder
from sequitur.base.program import sentence
from sequitur.base.settings import load_settings
from sequitur.cli.broker import default_directory
from sequitur.errors import PipelineError, SettingsError
from sequitur.pipelines.jars import cache_directory
from sequitur.pipelines.launch import require_user_name
from sequitur.producer.daemon.settings import ProduceJob, dead_letter_file, default_journal

if TYPE_CHECKING:
    from collections.abc import Callable

_NOBODY = 2**31 - 3
_NO_HOME = r"no home folder: HOME is not set, and the user \d+ has no entry in /etc/passwd. Give "


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id without an entry in /etc/passwd, as a container may be given."""
    monkeypatch.setattr(os, "getuid", lambda: _NOBODY)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "SEQUITUR_CACHE"):
        monkeypatch.delenv(name, raising=False)


def _job(**flags: str) -> ProduceJob:
    required = {"bootstrap_servers": "127.0.0.1:1", "topic": "t", "name": "app"}
    return load_settings(ProduceJob, config=None, environ={}, flags=required | flags)


@pytest.mark.promise("in-no-home-folder")
@pytest.mark.usefixtures("nobody")
def test_no_home_is_needed_where_all_paths_are_given() -> None:
    job = _job(journal="/j", dead_letter="/d")
    assert dead_letter_file(job.produce, job.producer) == Path("/d")
    job = _job(journal="/j")
    assert dead_letter_file(job.produce, job.producer) == Path("/j.dead-letters.jsonl")
    job = _job(durability="none", dead_letter="/d")
    assert dead_letter_file(job.produce, job.producer) == Path("/d")


@pytest.mark.promise("in-no-home-folder")
@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("environ", [{}, {"HOME": ""}])
@pytest.mark.parametrize(
    ("folder", "instead"),
    [
        (lambda environ: default_journal("app", environ), "--journal, or XDG_STATE_HOME"),
        (default_directory, "--dir, or XDG_STATE_HOME"),
        (cache_directory, "SEQUITUR_CACHE, or XDG_CACHE_HOME"),
    ],
)
def test_without_a_home_the_path_to_give_is_named(
    environ: dict[str, str], folder: Callable[[dict[str, str]], Path], instead: str
) -> None:
    """An empty HOME is none: it would be the root of the file system."""
    with pytest.raises(SettingsError, match=f"^{_NO_HOME}{instead}$"):
        folder(environ)


@pytest.mark.promise("in-no-home-folder")
@pytest.mark.usefixtures("nobody")
def test_the_daemon_names_the_setting_that_is_missing() -> None:
    with pytest.raises(SettingsError, match=f"^{_NO_HOME}--journal"):
        _job()
    job = _job(durability="none")
    with pytest.raises(SettingsError, match=f"^{_NO_HOME}--dead-letter"):
        dead_letter_file(job.produce, job.producer)


@pytest.mark.promise("in-no-home-folder")
@pytest.mark.usefixtures("nobody")
def test_a_job_on_spark_needs_a_user_with_a_name() -> None:
    with pytest.raises(PipelineError, match=r"the user \d+ has no entry in /etc/passwd. Add one"):
        require_user_name()


@pytest.mark.promise("in-relative-user-folder")
@pytest.mark.parametrize("variable", ["XDG_X", "HOME"])
def test_a_relative_folder_is_refused(variable: str) -> None:
    """Each working folder would have a journal of its own."""
    with pytest.raises(SettingsError, match=f"^{variable} is the relative path 'state': .*--x$"):
        user_folder("XDG_X", ".x", environ={variable: "state"}, instead="--x")


@pytest.mark.promise("in-relative-user-folder")
def test_a_working_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FileNotFoundError) as error:
        Path("a").absolute()
    assert sentence(error.value, errors=()).startswith("the working folder was removed: change to")
    missing = FileNotFoundError(2, "No such file", "a")
    assert "a" in sentence(missing, errors=())
    assert "working folder" not in sentence(missing, errors=())


def test_the_variable_goes_before_the_home() -> None:
    def found(environ: dict[str, str]) -> Path:
        return user_folder("XDG_X", ".x", environ=environ, instead="--x")

    assert found({"XDG_X": "/x", "HOME": "/h"}) == Path("/x")
    assert found({"XDG_X": "", "HOME": "/h"}) == Path("/h/.x")
    assert found({"HOME": "/h"}) == Path("/h/.x")
    assert found({"HOME": ""}).name == ".x"

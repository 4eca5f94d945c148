"""The settings of the process job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from sequitur.base.flags import given_flags, with_flags
from sequitur.base.settings import flag_name, load_settings
from sequitur.consumer.topology import Ordering, ProcessSettings
from sequitur.errors import SettingsError
from sequitur.pipelines.run_options import ProcessJob

if TYPE_CHECKING:
    from pathlib import Path

_ENVIRON = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9092"}
_LEAST = {
    "input_topics": "readings",
    "output_topic": "ordered",
    "event_time": "json:at",
    "checkpoint": "/tmp/checkpoint",
}


def test_one_file_serves_reorder_and_process(tmp_path: Path) -> None:
    """A section [process] stands beside [reorder]; what it does not say has a default."""
    config = tmp_path / "job.toml"
    config.write_text('[process]\nordering = "none"\ncall_timeout = "5 s"\n')
    job = load_settings(ProcessJob, config=config, environ=_ENVIRON, flags=_LEAST)
    assert job.process.rules.ordering is Ordering.NONE
    assert job.process.rules.call_timeout_s == 5
    assert job.process.max_attempts == 5


def _job(tmp_path: Path, *, file: str = "", variable: str = "", flag: str = "") -> ProcessJob:
    """A job that is given times for calls, each in one of three ways and under one of two names."""
    config = tmp_path / "job.toml"
    config.write_text(f'[process]\n{file} = "5 s"\n' if file else "")
    environ = {f"SEQUITUR_PROCESS_{variable.upper()}": "6 s"} if variable else {}
    flags = {flag: "7 s"} if flag else {}
    return load_settings(
        ProcessJob, config=config, environ=_ENVIRON | environ, flags=_LEAST | flags
    )


@pytest.mark.promise("process-setting-given-name")
@pytest.mark.parametrize("below", ["message_timeout", "call_timeout"])
@pytest.mark.parametrize("name", ["message_timeout", "call_timeout"])
def test_a_name_of_before_is_understood(tmp_path: Path, name: str, below: str) -> None:
    """In each of the three ways, with the same precedence."""
    assert _job(tmp_path, file=name).process.rules.call_timeout_s == 5
    assert _job(tmp_path, file=below, variable=name).process.rules.call_timeout_s == 6
    assert _job(tmp_path, variable=below, flag=name).process.rules.call_timeout_s == 7
    assert ProcessSettings.model_validate({name: "8 s"}).rules.call_timeout_s == 8


@pytest.mark.promise("process-setting-given-name")
def test_a_setting_has_one_of_its_names(tmp_path: Path) -> None:
    """Both at once, in one place, are refused: which is meant?"""
    both = {"message_timeout": "1 s", "call_timeout": "1 s"}
    refused = "message_timeout is called call_timeout now"
    with pytest.raises(ValueError, match=refused):
        ProcessSettings.model_validate(both)
    with pytest.raises(SettingsError, match=f"process: {refused}"):
        load_settings(ProcessJob, config=None, environ=_ENVIRON, flags=_LEAST | both)
    config = tmp_path / "job.toml"
    config.write_text('[process]\nmessage_timeout = "1 s"\ncall_timeout = "1 s"\n')
    with pytest.raises(SettingsError, match=refused):
        load_settings(ProcessJob, config=config, environ=_ENVIRON, flags=_LEAST)


@pytest.mark.promise("process-setting-given-name")
def test_a_flag_of_before_is_there_and_not_shown() -> None:
    """So a command line of before goes on working, and nobody learns it anew."""
    app = typer.Typer()
    given: list[ProcessJob] = []

    @app.command()
    @with_flags(ProcessJob)
    def run(settings: ProcessJob) -> None:
        given.append(settings)

    words = [word for name, said in _LEAST.items() for word in (flag_name(name), said)]
    result = CliRunner().invoke(app, [*words, "--message-timeout", "9 s"], env=_ENVIRON)
    assert result.exit_code == 0, result.output
    assert given[0].process.rules.call_timeout_s == 9
    assert "--message-timeout" not in given_flags(given[0])
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "--call-timeout" in shown
    assert "--message-timeout" not in shown


def test_dead_letters_go_to_a_topic_named_after_the_output() -> None:
    job = load_settings(ProcessJob, config=None, environ=_ENVIRON, flags=_LEAST)
    assert job.process.dead_letters(job.reorder.output_topic) == "ordered.dead-letter"
    named = _LEAST | {"dead_letter_topic": "given-up"}
    job = load_settings(ProcessJob, config=None, environ=_ENVIRON, flags=named)
    assert job.process.dead_letters(job.reorder.output_topic) == "given-up"


@pytest.mark.promise("process-topology-fit-settings")
def test_a_setting_of_the_section_is_refused_by_name() -> None:
    environ = _ENVIRON | {"SEQUITUR_PROCESS_MAX_ATTEMPTS": "-1"}
    with pytest.raises(SettingsError, match=r"process\.max_attempts = '-1'"):
        load_settings(ProcessJob, config=None, environ=environ, flags=_LEAST)
    environ = _ENVIRON | {"SEQUITUR_PROCESS_MAX_ATEMPTS": "1"}
    with pytest.raises(SettingsError, match="did you mean SEQUITUR_PROCESS_MAX_ATTEMPTS"):
        load_settings(ProcessJob, config=None, environ=environ, flags=_LEAST)


def test_settings_survive_as_flags() -> None:
    """What one process was given reaches the one it starts, word for word."""
    given = _LEAST | {"ackers": "3", "retry_delay": "1 s", "outputs": "immediate"}
    job = load_settings(ProcessJob, config=None, environ=_ENVIRON, flags=given)
    switches = {"--rescue", "--no-sqlite-on-one-host"}
    words = [word for word in given_flags(job) if word not in switches]
    flags = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }
    assert job == load_settings(ProcessJob, config=None, environ={}, flags=flags)

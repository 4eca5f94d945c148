"""The settings of the process job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import Ordering
from sequitur.pipelines.settings import ProcessJob
from sequitur.producer.settings import SettingsError, load_settings
from sequitur.producer.settings_flags import given_flags

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
    config.write_text('[process]\nordering = "none"\nmessage_timeout = "5 s"\n')
    job = load_settings(ProcessJob, config=config, environ=_ENVIRON, flags=_LEAST)
    assert job.process.rules.ordering is Ordering.NONE
    assert job.process.rules.message_timeout_s == 5
    assert job.process.max_attempts == 5


def test_dead_letters_go_to_a_topic_named_after_the_output() -> None:
    """Unless the topic has a name of its own."""
    job = load_settings(ProcessJob, config=None, environ=_ENVIRON, flags=_LEAST)
    assert job.process.dead_letters(job.reorder.output_topic) == "ordered.dead-letter"
    named = _LEAST | {"dead_letter_topic": "given-up"}
    job = load_settings(ProcessJob, config=None, environ=_ENVIRON, flags=named)
    assert job.process.dead_letters(job.reorder.output_topic) == "given-up"


def test_a_setting_of_the_section_is_refused_by_name() -> None:
    """As those of all sections are, whichever way they were given."""
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

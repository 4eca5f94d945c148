"""The settings of the reorder job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sequitur.base.flags import given_flags
from sequitur.base.settings import load_settings
from sequitur.consumer.reorder import EventTimeSource, ReorderSettings
from sequitur.consumer.reorder.learned_delay import DelayPolicy
from sequitur.errors import SettingsError
from sequitur.pipelines.run_options import ReorderJob
from sequitur.producer import EVENT_ID_HEADER

_LEAST = {
    "input_topics": "readings",
    "output_topic": "ordered",
    "event_time": "json:at",
    "checkpoint": "/tmp/checkpoint",
}


def _load(**flags: Any) -> ReorderSettings:
    environ = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9092"}
    return load_settings(ReorderJob, config=None, environ=environ, flags=_LEAST | flags).reorder


def test_defaults_fit_the_article() -> None:
    """Ten seconds of delay, and side topics named after the output."""
    settings = _load()
    assert settings.delay == timedelta(seconds=10)
    assert settings.event_time.source is EventTimeSource.JSON
    assert (settings.late, settings.quarantine) == ("ordered.late", "ordered.quarantine")


def test_delay_is_fixed_or_learned() -> None:
    """A fixed delay asks for nothing to be learned; with auto the bounds are what counts."""
    assert _load(delay="5 s").delay_policy is None
    assert _load(delay="5 s").longest_delay == timedelta(seconds=5)
    learned = _load(delay="auto", delay_max="30 s", late_target="0.01")
    assert learned.delay_policy == DelayPolicy(
        late_target=0.01, min_ms=100, max_ms=30_000, half_life_ms=60_000
    )
    assert learned.longest_delay == timedelta(seconds=30)


def test_topics_are_given_as_list_or_text() -> None:
    """TOML gives a list, a flag or a variable gives text with commas."""
    assert _load(input_topics=["a", "b"]).input_topics == ("a", "b")
    assert _load(input_topics="a, b").input_topics == ("a", "b")


@pytest.mark.parametrize(("flags", "message"), [
    ({"event_time": "xml:at"}, "reorder.event_time = 'xml:at'.*expected json:<path>"),
    ({"input_topics": ""}, "topic name"),
    ({"input_topics": ()}, "either input_topics or input_pattern"),
    ({"input_pattern": "a.*"}, "either input_topics or input_pattern"),
    ({"input_topics": (), "input_pattern": ""}, "reorder.input_pattern"),
    ({"output_topic": "a/b"}, "reorder.output_topic = 'a/b'.*expected a topic name"),
    ({"output_topic": "readings"}, "must not be read"),
    ({"evicted_topic": "readings"}, "evicted_topic must not be read"),
    ({"late_topic": "ordered"}, "must differ"),
    ({"delay": "-1 s"}, "reorder.delay"),
    ({"delay": "automatic"}, "reorder.delay = 'automatic': expected 'auto', or a duration"),
    ({"late_target": "0"}, "reorder.late_target"),
    ({"delay_min": "2 s", "delay_max": "1 s"}, "delay_min must not be longer"),
    ({"delay_max": "30 d"}, "reorder.delay_max"),
    ({"delay_half_life": "0 s"}, "reorder.delay_half_life"),
    ({"duplicates": "drop"}, "reorder.duplicates = 'drop'"),
    ({"duplicates": "header:"}, "reorder.duplicates = 'header:'"),
    ({"mode": "newest"}, "reorder.mode = 'newest'"),
    ({"mode": "latest", "stale_topic": "ordered"}, "must differ"),
    ({"late_policy": "keep"}, "reorder.late_policy = 'keep'"),
    ({"key_ttl": "0 s"}, "reorder.key_ttl"),
    ({"starting_offsets": "now"}, "reorder.starting_offsets = 'now'"),
    ({"max_offsets_per_trigger": "0"}, "reorder.max_offsets_per_trigger"),
    ({"output_partitions": "0"}, "reorder.output_partitions"),
])  # fmt: skip
def test_wrong_setting_is_refused_by_name(flags: dict[str, str], message: str) -> None:
    """A setting that cannot work is named, with what was expected."""
    with pytest.raises(SettingsError, match=message):
        _load(**flags)


@pytest.mark.parametrize("given", [
    {"input_topics": "a,b", "delay": "1500 ms", "idle_timeout": "2 min", "rescue": False},
    {"input_topics": (), "input_pattern": "readings-[a-z]+"},
    {"delay": "auto", "late_target": "0.01", "delay_min": "5 ms", "delay_max": "1 h"},
])  # fmt: skip
def test_settings_survive_as_flags(given: dict[str, Any]) -> None:
    """What one process was given reaches the one it starts, word for word."""
    given = _LEAST | given
    job = load_settings(
        ReorderJob, config=None, environ={"KAFKA_BOOTSTRAP_SERVERS": "h:1"}, flags=given
    )
    words = given_flags(job)
    switches = {"rescue": "--rescue" in words}
    words = [word for word in words if word not in {"--rescue", "--no-rescue"}]
    flags = switches | {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }
    assert job == load_settings(ReorderJob, config=None, environ={}, flags=flags)


@pytest.mark.parametrize(("given", "where"), [
    ("keep", None),
    ("event-id", ("header", EVENT_ID_HEADER)),
    ("header:ce_id", ("header", "ce_id")),
    ("header:a:b", ("header", "a:b")),
    ("json:meta.id", ("json", "meta.id")),
])  # fmt: skip
def test_repeats_are_known_by_an_id(given: str, where: tuple[str, str] | None) -> None:
    """Ours by default, or the one that another producer writes."""
    assert _load(duplicates=given).duplicate_id == where


def test_an_id_that_is_nowhere_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"duplicates = 'json:a\.\.b'"):
        _load(duplicates="json:a..b")


def test_latest_mode_has_a_stale_topic() -> None:
    assert _load(mode="latest").late == "ordered.stale"
    assert _load(mode="latest", stale_topic="old").written_topics[1] == "old"


@pytest.mark.promise("order-backfill-years-ago")
def test_delay_above_the_floor_is_warned_of() -> None:
    """The rows' timestamps are then never their event times; not so where others are asked for."""
    assert _load(delay="6 h").warnings == ()
    (warning,) = _load(delay="7 h").warnings
    assert "delay 7 h is longer than timestamp_floor 6 h" in warning
    assert "sequitur-event-time" in warning
    for quiet in ({"output_timestamp": "now"}, {"timestamp_floor": "8 h"}, {"mode": "latest"}):
        assert _load(delay="7 h", **quiet).warnings == ()


def test_floor_has_a_limit() -> None:
    """A producer that is silent for longer is forgotten, and a delta has its bounds."""
    with pytest.raises(SettingsError, match="timestamp_floor"):
        _load(timestamp_floor="8 d")

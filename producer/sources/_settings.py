"""Settings of the sources."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, field_validator

from producer.settings import Duration, Section, Size
from producer.sources._json_lines import parse_key
from producer.sources._spec import parse_source


class SourceSettings(Section):
    """What the daemon reads, and how. Those that another source would use are passed over."""

    source: str = Field(
        default="cpu",
        description="cpu, stdin, file:PATH, dir:PATH, http:HOST:PORT or replay:PATH",
    )
    key: str | None = Field(
        default=None,
        description="Where an event's key stands: json:<path>; without it, events have no key",
    )
    follow: bool = Field(
        default=True,
        description="Wait for more at the end of a file or folder, or stop (file, dir)",
    )
    poll_interval: Duration = Field(
        default=timedelta(milliseconds=200),
        gt=timedelta(0),
        description="Time between two looks at a file or folder with nothing new (file, dir)",
    )
    rotate_wait: Duration = Field(
        default=timedelta(seconds=2),
        description="How long a rotated file must be silent before it is left (file)",
    )
    on_lost_file: Literal["continue", "fail"] = Field(
        default="continue",
        description="What to do when a file is gone before it was read to its end (file, dir)",
    )
    speed: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="1 is the speed of the recording, 0 is without pauses (replay)",
    )
    replay_event_time: str = Field(
        default="json:occurred_at",
        description="Where a recorded event's time stands: json:<path> (replay)",
    )
    disorder: Duration = Field(
        default=timedelta(0),
        description="Delay each event by a random time up to this (replay)",
    )
    late_share: float = Field(
        default=0.0, ge=0, le=1, description="Share of events that are late on top (replay)"
    )
    late_by: Duration = Field(default=timedelta(0), description="By how much they are (replay)")
    seed: int = Field(default=0, ge=0, description="Chooses the random delays (replay)")
    http_max_body: Size = Field(
        default=8 << 20, gt=0, le=1 << 30, description="The largest body of a request (http)"
    )
    http_max_pending: Size = Field(
        default=64 << 20,
        gt=0,
        description="Bodies held at the same time, beyond which the answer is 503 (http)",
    )
    http_room_timeout: Duration = Field(
        default=timedelta(seconds=5),
        gt=timedelta(0),
        description="How long a request waits for room before the answer is 503 (http)",
    )
    rate_hz: float = Field(
        default=100.0, gt=0, le=10_000, description="Samples a second, each of all cpus (cpu)"
    )
    duration: Duration | None = Field(
        default=None,
        description="Stop by itself after so long; without it, run until a signal (cpu)",
    )
    send_delay: Duration = Field(
        default=timedelta(0), description="Keep each event back so long before sending it (cpu)"
    )

    @field_validator("source")
    @classmethod
    def _names_a_source(cls, value: str) -> str:
        parse_source(value)
        return value

    @field_validator("key", "replay_event_time")
    @classmethod
    def _names_a_field(cls, value: str | None) -> str | None:
        if value is not None:
            parse_key(value)
        return value

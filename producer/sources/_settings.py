"""Settings of the sources."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from sequitur.base.json_field import parse_key
from sequitur.base.settings import Duration, Section, Size, Words
from sequitur.producer.sources._lines import parse_header
from sequitur.producer.sources._spec import parse_source


class SourceSettings(Section):
    """What the daemon reads, and how. Those that another source would use are passed over."""

    source: str = Field(
        default="cpu",
        description="cpu, stdin, file:PATH, dir:PATH, http:HOST:PORT or replay:PATH",
    )
    format: Literal["json", "text"] = Field(
        default="json",
        description="What a line is: json, checked to be one value; or text, taken as it is",
    )
    key: str | None = Field(
        default=None,
        description="Where an event's key stands: json:<path>; without it, events have no key",
    )
    header: Words = Field(
        default=(),
        description="Headers out of the event, as NAME=json:<path>: the file's own ids for "
        "`duplicates`, say; may be repeated",
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
    rotated_numbers: Literal["higher-is-older", "higher-is-newer"] = Field(
        default="higher-is-older",
        description="Which of app.log.1 and app.log.2 is older (file)",
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
    http_body_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="How long a body may take to come before the answer is 408 (http)",
    )
    http_token: SecretStr | None = Field(
        default=None,
        description="What a request has to carry as Authorization: Bearer, for all who may send; "
        "expected where others than this machine can connect; never printed (http)",
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

    @field_validator("http_token")
    @classmethod
    def _goes_into_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            text = value.get_secret_value()
            if not text or not text.isascii() or not text.isprintable() or " " in text:
                raise ValueError("expected printable ASCII characters without spaces")
        return value

    @model_validator(mode="after")
    def _is_not_open_to_all(self) -> Self:
        spec = parse_source(self.source)
        if spec.kind == "http" and self.http_token is None and not spec.is_loopback:
            raise ValueError(
                f"source {self.source!r} listens beyond this machine: expected http_token, given "
                f"as SEQUITUR_PRODUCE_HTTP_TOKEN or in the file; or http:127.0.0.1:{spec.port}"
            )
        return self

    @model_validator(mode="after")
    def _text_has_no_fields(self) -> Self:
        if self.format == "text" and self.key is not None:
            raise ValueError(f"key {self.key!r} is a field of JSON: expected format json")
        if self.format == "text" and self.header:
            raise ValueError(f"header {self.header[0]!r} is a field of JSON: expected format json")
        if self.format == "text" and parse_source(self.source).kind in {"cpu", "replay"}:
            raise ValueError(f"source {self.source!r} gives JSON: expected format json")
        return self

    @field_validator("header")
    @classmethod
    def _names_headers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            parse_header(one)
        return value

    @field_validator("key", "replay_event_time")
    @classmethod
    def _names_a_field(cls, value: str | None) -> str | None:
        if value is not None:
            parse_key(value)
        return value

"""`http:HOST:PORT`: events by POST. `_http_server` serves them, and loads a web server."""

from __future__ import annotations

import ipaddress
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from sequitur.base.units import Duration, Size, parse_address
from sequitur.errors import SourceError
from sequitur.producer.sources._source import CommonSettings, SourceKind

if TYPE_CHECKING:
    from sequitur.producer.sources._lines import EventParser
    from sequitur.producer.sources._source import Source


class HttpSettings(CommonSettings):
    """Settings of `http`."""

    title = "HTTP"

    http_max_body: Size = Field(
        default=8 << 20, gt=0, le=1 << 30, description="The largest body of a request (http)"
    )
    http_max_pending: Size = Field(
        default=64 << 20,
        gt=0,
        description="Most bytes of bodies that are in work at the same time. Beyond, the answer "
        "is 503 (http)",
    )
    http_body_timeout: Duration = Field(
        default=timedelta(seconds=30),
        gt=timedelta(0),
        description="How long a body may take to arrive. Then the answer is 408 (http)",
    )
    http_token: SecretStr | None = Field(
        default=None,
        description="Token that each request must carry, as Authorization: Bearer. Required if "
        "other machines can connect. Never printed (http)",
    )
    http_room_timeout: Duration = Field(
        default=timedelta(seconds=5),
        gt=timedelta(0),
        description="How long a request waits for room. Then the answer is 503 (http)",
    )

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
        if self.source.startswith("http:") and self.http_token is None:
            host, port = _address(self.source)
            if not is_loopback(host):
                raise ValueError(
                    f"source {self.source!r} listens beyond this machine: expected http_token, "
                    "given as SEQUITUR_PRODUCE_HTTP_TOKEN or in the file, or the address "
                    f"http:127.0.0.1:{port}"
                )
        return self


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to it; of names only localhost is known."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _address(source: str) -> tuple[str, int]:
    return parse_address(source.partition(":")[2])


def _check(settings: HttpSettings) -> None:
    host, port = _address(settings.source)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port:  # else any free one is taken
        try:
            socket.create_server((host, port), family=family, reuse_port=False).close()
        except OSError as error:
            raise SourceError(f"cannot listen on {host}:{port}: {error}") from error


def _make(settings: HttpSettings, parser: EventParser) -> Source:
    from sequitur.producer.sources._http_body import HttpLimits  # noqa: PLC0415
    from sequitur.producer.sources._http_server import HttpSource  # noqa: PLC0415

    limits = HttpLimits(
        body_bytes=settings.http_max_body,
        pending_bytes=settings.http_max_pending,
        room_timeout_s=settings.http_room_timeout.total_seconds(),
        body_timeout_s=settings.http_body_timeout.total_seconds(),
    )
    token = settings.http_token
    return HttpSource(
        *_address(settings.source),
        parser,
        limits,
        token=None if token is None else token.get_secret_value(),
    )


SOURCE: Final = SourceKind(
    settings=HttpSettings, make=_make, check=_check, verify=_address, takes="HOST:PORT"
)

"""Makes the source that the settings name."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from sequitur.base.json_field import parse_key
from sequitur.base.settings import milliseconds
from sequitur.errors import SourceError
from sequitur.producer.sources._lines import EventParser, TextParser, parse_header
from sequitur.producer.sources._spec import parse_source

if TYPE_CHECKING:
    from sequitur.producer.sources._settings import SourceSettings
    from sequitur.producer.sources._source import Source
    from sequitur.producer.sources._spec import SourceSpec


def make_source(settings: SourceSettings, *, max_event_bytes: int) -> Source:
    """Return the source, ready to run. What only one source needs is imported with it."""
    spec = parse_source(settings.source)
    # Absolute: a source's name keys its position, and must not mean another file elsewhere.
    path = Path(spec.path).absolute()
    key = None if settings.key is None else parse_key(settings.key)
    parser = (
        TextParser(max_event_bytes)
        if settings.format == "text"
        else EventParser(key, max_event_bytes, [parse_header(one) for one in settings.header])
    )
    match spec.kind:
        case "cpu":
            return _make_cpu(settings)
        case "stdin":
            from sequitur.producer.sources.stdin import StdinSource  # noqa: PLC0415

            return StdinSource(parser)
        case "file":
            from sequitur.producer.sources.file import FileSource  # noqa: PLC0415

            return FileSource(
                path,
                parser,
                follow=settings.follow,
                poll_interval_s=settings.poll_interval.total_seconds(),
                rotate_wait_s=settings.rotate_wait.total_seconds(),
                on_lost_file=settings.on_lost_file,
                rotated_numbers=settings.rotated_numbers,
            )
        case "dir":
            from sequitur.producer.sources.dir import DirectorySource  # noqa: PLC0415

            return DirectorySource(
                path,
                parser,
                follow=settings.follow,
                poll_interval_s=settings.poll_interval.total_seconds(),
                on_lost_file=settings.on_lost_file,
            )
        case "http":
            return _make_http(settings, spec, parser)
        case "replay":
            return _make_replay(settings, path, parser)


def check_source(settings: SourceSettings) -> None:
    """Refuse at once what could not be read later. A `file` may still come."""
    spec = parse_source(settings.source)
    path = Path(spec.path).absolute()
    if spec.kind == "dir" and not path.is_dir():
        raise SourceError(f"{path} is not there, or no folder")
    if spec.kind == "replay" and not path.is_file():
        raise SourceError(f"{path} is not there, or no file")
    if spec.kind == "http" and spec.port:
        try:
            with socket.create_server(
                (spec.host, spec.port), family=_family(spec.host), reuse_port=False
            ):
                pass
        except OSError as error:
            raise SourceError(f"cannot listen on {spec.host}:{spec.port}: {error}") from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _make_cpu(settings: SourceSettings) -> Source:
    from sequitur.producer.sources.cpu import CpuFeed, CpuSource  # noqa: PLC0415

    sampler = CpuSource(rate_hz=settings.rate_hz, duration=settings.duration)
    return CpuFeed(sampler, send_delay_s=settings.send_delay.total_seconds())


def _make_http(settings: SourceSettings, spec: SourceSpec, parser: EventParser) -> Source:
    from sequitur.producer.sources._http_server import HttpLimits, HttpSource  # noqa: PLC0415 - aiohttp is large

    limits = HttpLimits(
        body_bytes=settings.http_max_body,
        pending_bytes=settings.http_max_pending,
        room_timeout_s=settings.http_room_timeout.total_seconds(),
        body_timeout_s=settings.http_body_timeout.total_seconds(),
    )
    token = settings.http_token
    return HttpSource(
        spec.host,
        spec.port,
        parser,
        limits,
        token=None if token is None else token.get_secret_value(),
    )


def _make_replay(settings: SourceSettings, path: Path, parser: EventParser) -> Source:
    from sequitur.producer.sources._replay_schedule import Disorder  # noqa: PLC0415
    from sequitur.producer.sources.replay import ReplaySource  # noqa: PLC0415 - numpy is large

    disorder = Disorder(
        up_to_ms=milliseconds(settings.disorder),
        late_share=settings.late_share,
        late_by_ms=milliseconds(settings.late_by),
        seed=settings.seed,
    )
    return ReplaySource(
        path,
        parser,
        event_time=parse_key(settings.replay_event_time),
        speed=settings.speed,
        disorder=disorder,
    )

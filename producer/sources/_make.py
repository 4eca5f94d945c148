"""Makes the source that the settings name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from producer.settings import milliseconds
from producer.sources._json_lines import EventParser, parse_key
from producer.sources._spec import parse_source

if TYPE_CHECKING:
    from producer.sources._intake import Source
    from producer.sources._settings import SourceSettings
    from producer.sources._spec import SourceSpec


def make_source(settings: SourceSettings, *, max_event_bytes: int) -> Source:
    """The source, ready to run. What only one source needs is imported with it.

    Args:
        settings: Which source, and how it reads.
        max_event_bytes: Longer events are refused: the producer's `max_request_size`.

    Raises:
        SourceSpecError: The settings name no source.
        KeySpecError: They name no place for the key.
    """
    spec = parse_source(settings.source)
    # Absolute: a source's name keys its position, and must not mean another file elsewhere.
    path = Path(spec.path).absolute()
    key = None if settings.key is None else parse_key(settings.key)
    parser = EventParser(key, max_event_bytes)
    match spec.kind:
        case "cpu":
            return _make_cpu(settings)
        case "stdin":
            from producer.sources._stdin import StdinSource  # noqa: PLC0415

            return StdinSource(parser)
        case "file":
            from producer.sources._file import FileSource  # noqa: PLC0415

            return FileSource(
                path,
                parser,
                follow=settings.follow,
                poll_interval_s=settings.poll_interval.total_seconds(),
                rotate_wait_s=settings.rotate_wait.total_seconds(),
                on_lost_file=settings.on_lost_file,
            )
        case "dir":
            from producer.sources._dir import DirectorySource  # noqa: PLC0415

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


def _make_cpu(settings: SourceSettings) -> Source:
    from producer.sources._cpu import CpuSource  # noqa: PLC0415
    from producer.sources._cpu_feed import CpuFeed  # noqa: PLC0415

    sampler = CpuSource(rate_hz=settings.rate_hz, duration=settings.duration)
    return CpuFeed(sampler, send_delay_s=settings.send_delay.total_seconds())


def _make_http(settings: SourceSettings, spec: SourceSpec, parser: EventParser) -> Source:
    from producer.sources._http import HttpLimits, HttpSource  # noqa: PLC0415 - aiohttp is large

    limits = HttpLimits(
        body_bytes=settings.http_max_body,
        pending_bytes=settings.http_max_pending,
        room_timeout_s=settings.http_room_timeout.total_seconds(),
    )
    return HttpSource(spec.host, spec.port, parser, limits)


def _make_replay(settings: SourceSettings, path: Path, parser: EventParser) -> Source:
    from producer.sources._replay import ReplaySource  # noqa: PLC0415 - numpy is large
    from producer.sources._replay_schedule import Disorder  # noqa: PLC0415

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

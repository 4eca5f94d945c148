"""`sequitur subscription watch`: all checks, again and again, while no job makes them."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from sequitur._kafka_commands import AsJson, KafkaJob
from sequitur.base.flags import with_flags
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.kafka.connections import require_broker
from sequitur.pipelines.ordering.progress import instant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.subscription.checks import CheckRound

_ACTS = frozenset(
    {
        FindingKind.EVICTED,
        FindingKind.EXPIRED_MESSAGES,
        FindingKind.EXPIRED_SUBSCRIPTION,
    }
)
"""Each of these is told; of what lasts only the beginning."""


@with_flags(KafkaJob)
def watch(
    settings: KafkaJob,
    interval: Annotated[
        float, typer.Option(help="Seconds from one round to the next", min=0.1, max=3600)
    ] = 1.0,
    copy_to: Annotated[
        str | None,
        typer.Option(
            help="Topic that messages are copied to before they are evicted, of subscriptions that "
            "name none"
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="End after so many; by default when it is stopped", min=1)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what is to be done, and do nothing")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check quotas, times to live, expirations and thresholds, again and again.

    A backlog grows when the job is down, so the checks run here, too. Of several programs that
    watch one makes the checks, and another goes on when that one ends. What there is to find is
    told when it begins, and each thing that is done.
    """
    from sequitur.consumer.subscription.watch import watch as run_checks  # noqa: PLC0415

    require_broker(settings.kafka)
    told: set[tuple[str, str | None, str | None]] = set()
    done = 0

    def tell(found: CheckRound) -> None:
        nonlocal told, done
        done += 1
        if as_json:
            typer.echo(json.dumps(found.to_document()))
            return
        lasting = {(one.kind.value, one.topic, one.subscription) for one in found.findings}
        for one in found.findings:
            if one.kind in _ACTS or (one.kind.value, one.topic, one.subscription) not in told:
                where = " ".join(name for name in (one.topic, one.subscription) if name)
                typer.echo(f"{instant(found.now_ms)} {one.kind.value}: {where}: {one.sentence}")
        told = lasting

    with _stop_on_signals() as stop:
        run_checks(
            settings.kafka,
            tell=tell,
            stop=lambda: stop.is_set() or (rounds is not None and done >= rounds),
            interval_s=interval,
            copy_to=copy_to,
            dry_run=dry_run,
            warn=lambda line: typer.echo(line, err=True),
        )


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Give what SIGINT and SIGTERM set, for as long as the block runs."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

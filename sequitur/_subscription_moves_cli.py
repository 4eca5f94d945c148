"""`sequitur subscription reset|skip|expire`: they move cursors.

Each tells first what it means, and asks; `--yes` answers. It is refused while the
subscription has an owner, unless `--fence` takes it away from that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sequitur._kafka_commands import AsJson, KafkaJob, echo_json, surveyor_of
from sequitur._subscription_options import Name, OnlyPartition, OnlyTopic, Yes, ask, only_of
from sequitur._subscription_tables import print_moves
from sequitur.base.flags import with_flags
from sequitur.base.process import wall_clock_ms
from sequitur.consumer.subscription.policies import parse_time_s
from sequitur.consumer.subscription.position import (
    Edge,
    Position,
    ToPositions,
    ToTime,
    parse_ago_ms,
    parse_time_ms,
)

if TYPE_CHECKING:
    from sequitur.consumer.subscription.cursor_moves import CursorMoves, Plan
    from sequitur.consumer.subscription.position import ResetTarget

DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what it means, and do nothing")]
Fence = Annotated[
    bool,
    typer.Option(
        "--fence",
        help="Also while it has an owner: that one stops by name, and goes on from the new cursors "
        "when it is started again",
    ),
]


@with_flags(KafkaJob)
def reset(
    settings: KafkaJob,
    name: Name,
    ago: Annotated[
        str | None, typer.Option("--time", "-t", help="To so long ago: 30s, 90m, 4h, 3d, 2w")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(help="To a time: ISO 8601, or milliseconds since 1970")
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--to-offset", "-m", help="PARTITION:OFFSET or TOPIC:PARTITION:OFFSET; may be repeated"
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first message that is there")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last message")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    fence: Fence = False,
    as_json: AsJson = False,
) -> None:
    """Begin anew at other messages, with nothing acked behind them: a new epoch.

    The frontier, what is known of keys, and the identity of the job's output begin anew, too. What
    an earlier epoch acks is refused. Partitions that --to-offset does not name stay where they are.
    """
    targets: list[ResetTarget] = []
    if ago is not None:
        targets.append(ToTime(parse_ago_ms(ago, now_ms=wall_clock_ms())))
    if to_time is not None:
        targets.append(ToTime(parse_time_ms(to_time)))
    if to_offset:
        targets.append(ToPositions(tuple(map(Position.parse, to_offset))))
    if to_earliest:
        targets.append(Edge.EARLIEST)
    if to_latest:
        targets.append(Edge.LATEST)
    if len(targets) != 1:
        raise typer.BadParameter(
            "give one of --time, --to-time, --to-offset, --to-earliest and --to-latest"
        )
    moves = _moves(settings)
    plan = moves.plan_reset(name, targets[0])
    _carry_out(moves, plan, dry_run=dry_run, yes=yes, fence=fence, as_json=as_json)


@with_flags(KafkaJob)
def skip(
    settings: KafkaJob,
    name: Name,
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="How many of each partition", min=1)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All: clears the backlog")] = False,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    fence: Fence = False,
    as_json: AsJson = False,
) -> None:
    """Ack the oldest messages that are not acked, unprocessed: so many of each partition."""
    if (count is None) is not everything:
        raise typer.BadParameter("give either --count or --all")
    moves = _moves(settings)
    plan = moves.plan_skip(name, count, only=only_of(topic, partition))
    _carry_out(moves, plan, dry_run=dry_run, yes=yes, fence=fence, as_json=as_json)


@with_flags(KafkaJob)
def expire(
    settings: KafkaJob,
    name: Name,
    older_than: Annotated[
        str, typer.Option("--expireTime", "-t", help="Seconds, or 90m, 4h, 3d, 2w")
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    fence: Fence = False,
    as_json: AsJson = False,
) -> None:
    """Ack messages that are older than a time, unprocessed: up to the first that is not."""
    older_than_s = parse_time_s(older_than)
    if older_than_s is None:
        raise typer.BadParameter(f"{older_than}: a negative time has not passed")
    moves = _moves(settings)
    plan = moves.plan_expire(name, older_than_s)
    _carry_out(moves, plan, dry_run=dry_run, yes=yes, fence=fence, as_json=as_json)


def _carry_out(
    moves: CursorMoves, plan: Plan, *, dry_run: bool, yes: bool, fence: bool, as_json: bool
) -> None:
    """Tell what a plan means, ask, and do it."""
    preview = {**plan.to_document(), "dryRun": True}
    if dry_run and as_json:
        echo_json(preview)
    elif dry_run or not yes:
        print_moves(preview, beside=as_json)
    if dry_run:
        return
    if not yes:
        ask(f"{plan.kind.value} subscription {plan.name}?")
    done = {**moves.carry_out(plan, fence=fence).to_document(), "dryRun": False}
    if as_json:
        echo_json(done)
    else:
        print_moves(done)


def _moves(settings: KafkaJob) -> CursorMoves:
    from sequitur.consumer.subscription.cursor_moves import CursorMoves  # noqa: PLC0415

    return CursorMoves(surveyor_of(settings))

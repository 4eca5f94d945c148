"""The commands of the program: where each is, what was its name before, and a line to be typed."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup

from sequitur.base.program import ImportedCommands, complain
from sequitur.base.text import renamed

_PLACES: Final = {
    "produce": "sequitur.producer.daemon.cli:produce",
    "measure": "sequitur.cli.measure:measure",
    "reorder": "sequitur.cli.jobs:reorder_app",
    "process": "sequitur.cli.jobs:run_topology",
    "state": "sequitur.cli.state:state_app",
    "verify": "sequitur.cli.check:verify",
    "tail": "sequitur.cli.tail:show_tail",
    "dlq": "sequitur.cli.dlq:dlq_app",
    "subscription": "sequitur.cli.subscription:subscription_app",
    "topic": "sequitur.cli.topic:topic_app",
    "retention": "sequitur.cli.topic:retention_app",
    "journal": "sequitur.cli.journal:journal_app",
    "broker": "sequitur.cli.broker:broker_app",
    "setup": "sequitur.cli.setup:setup",
    "demo": "sequitur.cli.setup:demo",
}
"""Module and name of each command, which is a function or a Typer."""

_NAMES_OF_TODAY: Final = {"run": "process", "watch": "maintain"}

EXAMPLES: Final = {
    "produce": "sequitur produce --topic readings --source file:app.jsonl --key json:host",
    "reorder run": "sequitur reorder --input-topics readings --output-topic ordered "
    '--event-time "json:at as ms" --delay "10 s" --checkpoint state',
    "reorder inspect": "sequitur reorder inspect state",
    "process": "sequitur process wordcount.py --input-topics lines --output-topic words "
    '--event-time json:at --delay "10 s" --checkpoint state',
    "state get": "sequitur state get state quiet ann",
    "state list": "sequitur state list state quiet",
    "state export": "sequitur state export state quiet",
    "tail": "sequitur tail ordered -n 20 --no-follow",
    "measure": "sequitur measure readings --event-time json:at --last 1h",
    "verify": "sequitur verify ordered --event-time json:at",
    "setup": "sequitur setup",
    "demo": "sequitur demo --seconds 10 --plot demo.png",
    "broker up": 'eval "$(sequitur broker up)"',
    "broker down": "sequitur broker down",
    "broker status": "sequitur broker status --json",
    "dlq list": "sequitur dlq list --output-topic words --reason crash",
    "dlq show": "sequitur dlq show 0:17 --output-topic words",
    "dlq replay": "sequitur dlq replay --output-topic words --checkpoint state --reason crash",
    "journal show": "sequitur journal show ~/.local/state/sequitur/producers/app-1.journal",
    "journal verify": "sequitur journal verify ~/.local/state/sequitur/producers/app-1.journal",
    "subscription list": "sequitur subscription list",
    "subscription create": "sequitur subscription create billing --topic orders --position latest",
    "subscription delete": "sequitur subscription delete billing",
    "subscription stats": "sequitur subscription stats billing --rates-over 10",
    "subscription stats-internal": "sequitur subscription stats-internal billing",
    "subscription peek": "sequitur subscription peek billing -n 5",
    "subscription reset": "sequitur subscription reset billing --time 4h --dry-run",
    "subscription skip": "sequitur subscription skip billing -n 1",
    "subscription expire": "sequitur subscription expire billing -t 3d --dry-run",
    "subscription maintain": "sequitur subscription maintain",
    "retention run": "sequitur retention run orders --dry-run",
    "topic get": "sequitur topic get orders",
    "topic get-backlog-quota": "sequitur topic get-backlog-quota orders",
    "topic set-backlog-quota": "sequitur topic set-backlog-quota orders --limit 10G",
    "topic remove-backlog-quota": "sequitur topic remove-backlog-quota orders",
    "topic get-message-ttl": "sequitur topic get-message-ttl orders",
    "topic set-message-ttl": "sequitur topic set-message-ttl orders -ttl 3d",
    "topic remove-message-ttl": "sequitur topic remove-message-ttl orders",
    "topic get-subscription-expiration-time": "sequitur topic get-subscription-expiration-time",
    "topic set-subscription-expiration-time": "sequitur topic set-subscription-expiration-time "
    "orders --time 2w",
    "topic remove-subscription-expiration-time": "sequitur topic "
    "remove-subscription-expiration-time orders",
    "topic get-retention": "sequitur topic get-retention orders",
    "topic set-retention": "sequitur topic set-retention orders --time 7d --size 10G",
    "topic remove-retention": "sequitur topic remove-retention orders",
    "topic set-thresholds": "sequitur topic set-thresholds orders --slow-age 10m",
    "topic remove-thresholds": "sequitur topic remove-thresholds orders",
}
"""Examples by the words of the command."""


class RenamedCommands(TyperGroup):
    """Commands with names from before 0.1.0, which still work but are not shown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command for the first word, which may be a former name."""
        former, today = args[0], _NAMES_OF_TODAY.get(args[0])
        if today is not None and today in self.commands:
            complain(renamed(f"{ctx.command_path} {former}", f"{ctx.command_path} {today}"))
            args = [today, *args[1:]]
        return super().resolve_command(ctx, args)


class ProgramCommands(RenamedCommands):
    commands: Any

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.commands = ImportedCommands(_PLACES)

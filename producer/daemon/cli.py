"""`produce-events`, also `python -m sequitur.producer` and `sequitur produce`: the daemon as a program.

It writes one line to standard output, at its end: the report of all events, as JSON. All other
output goes to standard error. Its exit status:

| status | when |
|---|---|
| 0 | the source ended or a signal came; what was accepted is in the topic or the dead-letter file, or in the journal, from where the next start sends it |
| 1 | as 0, but some events are not surely in the topic, and no journal has them |
| 2 | the settings were refused |
| 3 | it could not start, the source or the journal failed, or the dead-letter file is full; the log says why |

This holds after a second signal, too: without a journal the status is then usually 1.
"""  # noqa: E501 - a table's row is one line

from __future__ import annotations

import json
from typing import Final

import typer

from sequitur.base.flags import with_flags
from sequitur.base.program import run_program
from sequitur.errors import ProducerError
from sequitur.producer.daemon.daemon import run_daemon
from sequitur.producer.daemon.settings import ProduceJob

_EXAMPLES: Final = {
    "": "produce-events --topic readings --name app-1 --source file:app.jsonl --key json:host"
}

_app = typer.Typer(name="produce-events", pretty_exceptions_enable=False)


@_app.command()
@with_flags(ProduceJob)
def produce(settings: ProduceJob) -> None:
    """Send the events of a source to a topic, once and in order.

    Without --journal, the journal of each --name is in the user's state folder. With --durability
    none there is no journal.
    """
    report = run_daemon(settings.kafka, settings.producer, settings.produce)
    typer.echo(json.dumps(report.as_json()))
    if report.exit_status:
        raise typer.Exit(report.exit_status)


def main() -> None:
    run_program("produce-events", _app, errors=(ProducerError,), examples=_EXAMPLES)

"""`sequitur broker`: the embedded broker from the command line.

`eval "$(sequitur broker up)"` starts it and makes all programs of that shell use it: the shell's
command goes to standard output, messages for the user to standard error.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from sequitur.base.process import user_folder
from sequitur.base.settings import Settings, load_settings
from sequitur.embedded import EmbeddedBroker
from sequitur.errors import BrokerError
from sequitur.kafka.broker_check import require_broker
from sequitur.producer import KafkaSettings

ADDRESS_VARIABLE: Final = "KAFKA_BOOTSTRAP_SERVERS"
USUAL_PORT: Final = 9092
"""Kafka's usual port, which examples and settings use."""
_NOT_ANSWERING_EXIT_CODE: Final = 1

broker_app = typer.Typer(
    name="broker",
    help="The embedded Kafka broker: one node on 127.0.0.1.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="The folder of the embedded broker (default: $SEQUITUR_BROKER_DIR, or a folder in "
        f"the user's state folder). The command ignores {ADDRESS_VARIABLE}",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        help=f"0: {USUAL_PORT} if it is free, else the port of the last run, else any",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]


class BrokerAddress(Settings):
    """How to reach another broker than the embedded one."""

    kafka: KafkaSettings


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``$SEQUITUR_BROKER_DIR``, or else a folder in the user's state folder."""
    own = environ.get("SEQUITUR_BROKER_DIR")
    if own:
        return Path(own)
    state = user_folder("XDG_STATE_HOME", ".local/state", environ=environ, instead="--dir")
    return state / "sequitur" / "broker"


@broker_app.command()
def up(directory: Directory = None, port: Port = 0) -> None:
    """Start the broker, wait until it answers, and print the line that makes programs use it."""
    broker = EmbeddedBroker(directory or default_directory(), port=port, usual_port=USUAL_PORT)
    other = None if directory or port else _other_broker(broker)
    if other is not None:
        typer.echo(
            f"{ADDRESS_VARIABLE} is set: the broker at {other} is used, and none is started. To "
            "start one anyway, give --dir",
            err=True,
        )
        typer.echo(f"export {ADDRESS_VARIABLE}={other}")
        return
    servers = broker.start()
    typer.echo(f"Kafka answers at {servers}. Its log is {broker.log_path}", err=True)
    if not port and not servers.endswith(f":{USUAL_PORT}"):
        typer.echo(
            f"that is not the usual port {USUAL_PORT}, which another program had: settings that "
            "name it reach that program",
            err=True,
        )
    typer.echo(f"export {ADDRESS_VARIABLE}={servers}")


@broker_app.command()
def down(directory: Directory = None) -> None:
    """Stop the embedded broker. Its data stays on disk."""
    broker = EmbeddedBroker(directory or default_directory())
    was_running = broker.status().running
    broker.stop()
    what = "stopped" if was_running else "none was running"
    typer.echo(f"embedded broker in {broker.directory}: {what}", err=True)


@broker_app.command()
def status(directory: Directory = None, as_json: AsJson = False) -> None:
    """Say whether the broker runs and answers. Status 1: it does not answer."""
    broker = EmbeddedBroker(directory or default_directory())
    other = None if directory else _other_broker(broker)
    if other is None:
        found = broker.status()
        answering = found.answering
        facts: dict[str, str | int | None] = {
            "embedded": True,
            "running": found.running,
            "answering": answering,
            "bootstrap_servers": found.bootstrap_servers,
            "pid": found.pid,
            "directory": str(found.directory),
            "log": str(found.log_path),
        }
    else:
        answering = _answers()
        facts = {"embedded": False, "answering": answering, "bootstrap_servers": other}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            typer.echo(f"{name.replace('_', ' '):<18}{_shown(value)}")
    if not answering:
        raise typer.Exit(_NOT_ANSWERING_EXIT_CODE)


def _other_broker(broker: EmbeddedBroker) -> str | None:
    """Return the address in the environment, unless it is this broker's own."""
    address = os.environ.get(ADDRESS_VARIABLE)
    return address if address and address != broker.status().bootstrap_servers else None


def _answers() -> bool:
    kafka = load_settings(BrokerAddress, config=None, environ=os.environ, flags={}).kafka
    try:
        require_broker(kafka)
    except BrokerError:
        return False
    return True


def _shown(value: str | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)

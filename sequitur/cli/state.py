"""`sequitur state`: what keyed bolts keep, of a job that runs or is stopped.

The commands only read. The state is that after the newest step, which they name. A file that was
merged away meanwhile is no error: they go on with the step that is newest then.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from sequitur.base.extras import load
from sequitur.cli.console import AsJson, echo_json, plain, shown, table_console
from sequitur.pipelines.ordering.progress import instant

if TYPE_CHECKING:
    from sequitur.pipelines.topology.kept_state import KeptKey, KeptState

_NARROWEST: Final = 100
"""The tables need so many columns. A pipe has none, and rich would take 80."""
_MOST: Final = 100

state_app = typer.Typer(
    name="state",
    help="What the keyed bolts of a job keep, running or not. The commands only read.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Checkpoint = Annotated[str, typer.Argument(help="The job's folder, a path or a URI")]
Bolt = Annotated[str, typer.Argument(help="Id of the keyed bolt")]
Prefix = Annotated[str, typer.Option(help="Only keys that begin with this text")]


@state_app.command()
def get(
    checkpoint: Checkpoint, bolt: Bolt, key: Annotated[str, typer.Argument(help="The key, as text")]
) -> None:
    """Print the state and the timers of a key as JSON. Bytes are in base64."""
    found = _opened(checkpoint).get(bolt, key.encode())
    echo_json({"bolt": bolt, **_as_json(found)})


@state_app.command("list")
def list_keys(
    checkpoint: Checkpoint,
    bolt: Annotated[str | None, typer.Argument(help="Id of the keyed bolt. Without: all")] = None,
    prefix: Prefix = "",
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Most keys shown")] = _MOST,
    as_json: AsJson = False,
) -> None:
    """List keyed bolts with their numbers of keys, or the keys of a bolt."""
    state = _opened(checkpoint)
    if bolt is None:
        _list_bolts(state, as_json=as_json)
        return
    keys = state.all(bolt, prefix.encode())
    listed = [_listed(one) for one in itertools.islice(keys, limit)]
    has_more = next(keys, None) is not None
    if as_json:
        echo_json({"bolt": bolt, "keys": listed, "has_more": has_more})
        return
    steps = sorted({one["step"] for one in listed}) or [state.bolts()[0]]
    after = f"steps {steps[0]} to {steps[-1]}" if steps[1:] else f"step {steps[0]}"
    table = Table(title=f"Keys of {bolt} after {after}", title_justify="left")
    table.add_column("key")
    for name in ("state bytes", "timers", "next timer"):
        table.add_column(name, justify="right")
    for one in listed:
        due = "-" if one["next_timer_ms"] is None else instant(one["next_timer_ms"])
        table.add_row(shown(one["key"]), f"{one['state_bytes']:,}", f"{one['timers']:,}", due)
    table_console(_NARROWEST).print(table)
    if has_more:
        typer.echo(f"There are more than {limit:,} keys: --limit or --prefix shows others")


@state_app.command()
def export(checkpoint: Checkpoint, bolt: Bolt, prefix: Prefix = "") -> None:
    """Print all keys of a bolt with state and timers, a JSON line each. Each names its step."""
    for one in _opened(checkpoint).all(bolt, prefix.encode()):
        typer.echo(json.dumps(_as_json(one), ensure_ascii=False))


def _opened(checkpoint: str) -> KeptState:
    load("pyarrow", "the state of keyed bolts")
    from sequitur.pipelines.topology.kept_state import KeptState  # noqa: PLC0415

    return KeptState.at(checkpoint)


def _list_bolts(state: KeptState, *, as_json: bool) -> None:
    step, bolts = state.bolts()
    if as_json:
        found = {bolt: counts._asdict() for bolt, counts in sorted(bolts.items())}
        echo_json({"step": step, "bolts": found})
        return
    table = Table(title=f"Keyed bolts after step {step}", title_justify="left")
    table.add_column("bolt")
    for name in ("keys", "bytes of files", "timers", "keys blocked", "keys tied"):
        table.add_column(name, justify="right")
    for bolt, counts in sorted(bolts.items()):
        table.add_row(bolt, *(f"{count:,}" for count in counts))
    table_console(_NARROWEST).print(table)


def _as_json(one: KeptKey) -> dict[str, Any]:
    return {
        "step": one.step,
        "key": plain(one.key),
        "state": one.state,
        "timers": one.timers,
        **({"map": [[_name(name), value] for name, value in one.named]} if one.named else {}),
        **({"list": one.listed} if one.listed else {}),
    }


def _name(name: Any) -> Any:
    return plain(name) if isinstance(name, bytes) else name


def _listed(one: KeptKey) -> dict[str, Any]:
    return {
        "step": one.step,
        "key": plain(one.key),
        "state_bytes": one.state_bytes,
        "timers": len(one.timers),
        "next_timer_ms": min(one.timers.values(), default=None),
    }

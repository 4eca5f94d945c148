"""The options of a run: declared once, taken as flags, and handed on as flags."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sequitur.pipelines.ordering.progress import ProgressStyle
from sequitur.pipelines.run_options import RunOptions, with_options

_ALL = RunOptions(
    available_now=True,
    drain=True,
    reset_input=True,
    report=Path("report.json"),
    progress=ProgressStyle.JSON,
)


@dataclass(frozen=True, slots=True)
class _More:
    words: list[str] | None = field(default=None, metadata={"help": "Words"})


def _taken(*flags: str) -> tuple[RunOptions, _More, str]:
    taken: list[tuple[RunOptions, _More, str]] = []
    app = typer.Typer()

    @app.command()
    @with_options
    def command(name: str, options: RunOptions, more: _More) -> None:
        taken.append((options, more, name))

    told = CliRunner().invoke(app, ["name", *flags])
    assert told.exit_code == 0, told.output
    (found,) = taken
    return found


@pytest.mark.parametrize("options", [RunOptions(), _ALL], ids=["defaults", "all"])
def test_what_is_handed_on_is_what_was_taken(options: RunOptions) -> None:
    """The command that is started with the flags of options has the same options."""
    assert _taken(*options.flags()) == (options, _More(), "name")


def test_each_option_is_handed_on() -> None:
    """One that is added cannot be forgotten on the way to spark-submit."""
    for one in fields(RunOptions):
        assert "--" + one.name.replace("_", "-") in _ALL.flags()
        assert one.metadata["help"]


def test_a_command_takes_several_classes_of_options() -> None:
    """Such as those of spark-submit beside those of the job; a list is a flag that is repeated."""
    options, more, _name = _taken("--words", "a", "--drain", "--words", "b")
    assert options == RunOptions(drain=True)
    assert more.words == ["a", "b"]

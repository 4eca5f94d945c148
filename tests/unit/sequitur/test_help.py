"""What commands print: their help, refusals and statuses."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from sequitur.base.program import command_of
from sequitur.cli.commands import EXAMPLES
from sequitur.cli.main import app
from sequitur.kafka.identity import Identity
from sequitur.pipelines.jars import main as jars_main
from sequitur.producer.daemon.cli import _EXAMPLES as PRODUCE_EXAMPLES
from sequitur.producer.daemon.cli import _app as produce_app
from sequitur.producer.journal.frames import Renewal, SourcePosition
from sequitur.producer.journal.journal import Journal
from tests.unit.producer.journal.test_journal import ack, batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import typer


_WIDTH = 80


def _help(command: typer.Typer, *words: str) -> list[str]:
    environ = {"COLUMNS": str(_WIDTH), "TERMINAL_WIDTH": str(_WIDTH)}
    shown = CliRunner().invoke(command, [*words, "--help"], env=environ)
    assert shown.exit_code == 0, shown.output
    return shown.output.splitlines()


@pytest.mark.parametrize(
    ("command", "words", "most_lines"),
    [(app, ("reorder",), 176), (app, ("process",), 223), (produce_app, (), 210)],
)
def test_help_fits_a_terminal(
    command: typer.Typer, words: tuple[str, ...], most_lines: int
) -> None:
    """Descriptions have most of the width, so a setting takes a line or two, not six."""
    lines = _help(command, *words)
    assert len(lines) <= most_lines
    assert max(map(len, lines)) <= _WIDTH
    assert not any("SEQUITUR_KAFKA_" in line for line in lines)
    assert sum("SEQUITUR_<SECTION>_<FIELD>" in line for line in lines) == 1


@pytest.mark.parametrize("words", [(), ("run",)])
def test_help_of_the_reorder_job_shows_the_commands_beside_it(words: tuple[str, ...]) -> None:
    """Whoever asks for help of a command with flags of its own sees that there are others."""
    lines = _help(app, "reorder", *words)
    (place,) = (number for number, line in enumerate(lines) if " Commands " in line)
    shown = [line.split()[1] for line in lines[place + 1 :] if line.startswith("│  ")]
    assert {"run", "inspect"} <= set(shown)


@pytest.mark.promise("cli-former-names")
@pytest.mark.parametrize(
    ("above", "former", "today"),
    [((), "run", "process"), (("subscription",), "watch", "maintain")],
)
def test_a_former_name_works_is_not_shown_and_names_the_new_one(
    above: tuple[str, ...], former: str, today: str
) -> None:
    words = " ".join(("sequitur", *above))
    shown = CliRunner().invoke(app, [*above, former, "--help"], prog_name="sequitur")
    assert shown.exit_code == 0
    assert shown.stderr.count("\n") == 1
    assert f"`{words} {former}` is called `{words} {today}` now." in shown.stderr
    assert f"Usage: {words} {today} " in shown.stdout
    assert CliRunner().invoke(app, [*above, today, "--help"]).stderr == ""
    listed = {line.split()[1] for line in _help(app, *above) if line.startswith("│ ")}
    assert today in listed
    assert former not in listed


@pytest.mark.promise("cli-former-names")
def test_a_word_that_was_another_commands_name_stays_unknown() -> None:
    assert CliRunner().invoke(app, ["watch"]).exit_code == 2
    refused = CliRunner().invoke(app, ["subscription", "run"])
    assert refused.exit_code == 2
    assert "called" not in refused.stderr


@pytest.mark.promise("cli-former-names")
@pytest.mark.parametrize(("words", "archives"), [([], 1), (["--no-archive"], 0)])
def test_setup_fetches_jars_and_writes_the_archive(
    monkeypatch: pytest.MonkeyPatch, words: list[str], archives: int
) -> None:
    """Those of a checkpoint in S3 and of tests on HDFS are left out; the old line does the same."""
    fetched: list[str] = []
    written: list[bool] = []

    def write_none() -> bool:
        written.append(False)
        return False

    monkeypatch.setattr("sequitur.pipelines.jars.locked_jars", fetched.append)
    monkeypatch.setattr("sequitur.pipelines.spark_classes.write_archive", write_none)
    done = CliRunner().invoke(app, ["setup", *words])
    assert done.exit_code == 0
    assert (fetched, len(written)) == (["broker", "spark"], archives)
    assert done.stderr.count("Jobs start without it") == archives  # none was written


@pytest.mark.promise("cli-former-names")
def test_the_line_that_setup_replaces_works_and_names_setup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr("sequitur.pipelines.jars.locked_jars", fetched.append)
    assert jars_main(["fetch"]) == 0
    assert fetched == ["broker", "spark"]
    told = "`python -m sequitur.pipelines.jars fetch` is called `sequitur setup` now."
    assert capsys.readouterr().err.startswith(told)
    with pytest.raises(SystemExit):
        jars_main(["--help"])
    assert "fetch" not in capsys.readouterr().out


def test_flags_are_grouped_by_what_they_are_about() -> None:
    """The panel's title has the section, which the file and the variables have in their names."""
    titles = [line for line in _help(app, "reorder") if line.startswith("╭─")]
    named = [line.strip("╭─╮ ") for line in titles]
    assert named[:4] == ["Options", "Brokers (kafka)", "Topics and state (reorder)", named[3]]
    assert "Delay (reorder)" in named
    assert "Late rows and duplicates (reorder)" in named


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from _commands(below, (*words, name))
    else:
        yield " ".join(words), command


_ALL = [
    *((words, command, EXAMPLES) for words, command in _commands(command_of(app, EXAMPLES))),
    ("", command_of(produce_app, PRODUCE_EXAMPLES), PRODUCE_EXAMPLES),
]


@pytest.mark.parametrize(("words", "command", "examples"), _ALL, ids=[words for words, *_ in _ALL])
def test_each_command_shows_an_example_that_it_takes(
    words: str, command: Any, examples: dict[str, str]
) -> None:
    """Its help ends with it; its flags and arguments are the command's own."""
    example = examples[words]
    assert command.epilog == f"Example: {example}"
    given = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
    program, *rest = given
    named = words.removesuffix(" run") if words == "reorder run" else words
    assert program == ("sequitur" if words else "produce-events")
    assert rest[: len(named.split())] == named.split()
    with command.make_context(words, rest[len(named.split()) :]) as context:
        assert context.args == []


def test_help_names_no_type_of_a_flag() -> None:
    for words, command, _ in _ALL:
        flags = [one for one in command.params if getattr(one, "is_flag", False)]
        assert {"--debug", "--help"} <= {one.opts[0] for one in flags}
        assert [(words, one.name) for one in flags if one.metavar != ""] == []


def test_required_settings_are_marked() -> None:
    text = " ".join(" ".join(_help(produce_app)).replace("│", "").split())
    assert "Topic that the daemon sends to (required)" in text


@pytest.mark.promise("sub-subscription-opened-created")
def test_create_has_to_say_where_it_begins() -> None:
    """The earliest message and the latest are different promises; none is guessed."""
    told = CliRunner().invoke(app, ["subscription", "create", "billing", "--topic", "orders"])
    assert told.exit_code == 2
    assert "--position" in told.output


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A sound journal: one batch acked, one not."""
    with Journal.open(tmp_path, producer="cpu-readings") as journal:
        journal.append([Renewal(Identity(7, 0)), batch(0), SourcePosition("file", b"line 10")])
        journal.append([batch(10)])
        journal.append([ack(batch(0))])
    return tmp_path


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["journal", *words])


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_sound_journal_is_printed_with_status_0(directory: Path, command: str) -> None:
    """For people: with the producer's name, its positions and what is not acknowledged."""
    result = _run(command, str(directory))
    assert result.exit_code == 0
    for text in ("sound", "cpu-readings", "position of file", "line 10", "un-acked"):
        assert text in result.output


@pytest.mark.parametrize("command", ["show", "verify"])
def test_json_is_for_programs(directory: Path, command: str) -> None:
    report = json.loads(_run(command, str(directory), "--json").output)
    assert report["verdict"] == "sound"
    assert report["producer"] == "cpu-readings"
    assert report["positions"] == {"file": "line 10"}
    assert [each["base_sequence"] for each in report["partitions"][0]["unacked"]] == [10]


def test_verify_ends_with_1_when_a_frame_is_damaged(directory: Path) -> None:
    """And says where; to look at such a journal is no failure of `show`."""
    segment = min(directory.glob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    verified = _run("verify", str(directory))
    assert verified.exit_code == 1
    assert "corrupt" in verified.output
    assert segment.name in verified.output
    assert _run("show", str(directory)).exit_code == 0


def test_a_torn_tail_is_sound(directory: Path) -> None:
    """A crash leaves one; the next start cuts it off."""
    segment = max(directory.glob("*.journal"))
    segment.write_bytes(segment.read_bytes()[:-3])
    verified = _run("verify", str(directory))
    assert verified.exit_code == 0
    assert "torn tail" in verified.output


@pytest.mark.parametrize("command", ["show", "verify"])
def test_no_journal_ends_with_2(tmp_path: Path, command: str) -> None:
    """Neither a folder that is missing nor one without a journal is one."""
    for folder in (tmp_path, tmp_path / "missing"):
        result = _run(command, str(folder))
        assert result.exit_code == 2
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"sequitur: {folder}: unreadable: ")

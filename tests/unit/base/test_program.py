"""A program of ours ends with a sentence and a status, whatever happens to it."""

from __future__ import annotations

import asyncio
import functools
import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import pytest
import typer

import sequitur
from sequitur.base.program import is_debugging, run_program
from sequitur.errors import BrokerUnreachableError, ProducerError, RetriableError
from sequitur.kafka.broker_check import require_broker
from sequitur.producer import KafkaSettings
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TIMEOUT_S = PATIENCE_S
_NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """A program leaves Ctrl-C to the system at its end, and the tests go on."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def _run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    *words: str,
) -> tuple[object, str]:
    """Status and complaint of a program whose command `work` raises."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.callback()
    def program() -> None:
        """Have commands."""

    @app.command()
    def work() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["program", *words])
    with pytest.raises(SystemExit) as ended:
        run_program("program", app, errors=(ProducerError,))
    return ended.value.code, capsys.readouterr().err


@pytest.mark.promise("cli-anything-else-goes")
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ProducerError("the disk is full"), "program: the disk is full\n"),
        (ValueError("no\nat line 1\nat line 2"), "program: ValueError: no (--debug shows where)\n"),
        (KeyError(), "program: KeyError (--debug shows where)\n"),
        (
            FileNotFoundError(2, "No such file or directory", "job.toml"),
            "program: [Errno 2] No such file or directory: 'job.toml' (--debug shows where)\n",
        ),
    ],
)
def test_what_goes_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    line: str,
) -> None:
    """Also what nobody has foreseen; status 3."""
    assert _run(capsys, monkeypatch, error, "work") == (3, line)


@pytest.mark.promise("cli-anything-else-goes")
@pytest.mark.parametrize("words", [("--debug", "work"), ("work", "--debug")])
def test_debug_shows_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The flag is taken in front of a command and behind it."""
    status, said = _run(capsys, monkeypatch, ValueError("no"), *words)
    assert status == 3
    assert said.startswith("program: ValueError: no\nTraceback (most recent call last):\n")
    assert "in work\n" in said
    assert is_debugging()


@pytest.mark.promise("cli-anything-else-goes")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nothing",), "program: No such command 'nothing' (program --help)\n"),
        (("work", "--bad"), "program: No such option: --bad (program work --help)\n"),
        (
            ("work", "more"),
            "program: Got unexpected extra argument(s) (more) (program work --help)\n",
        ),
    ],
)
def test_words_that_are_refused_are_told_in_the_same_way(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    line: str,
) -> None:
    """With the program's name in front, and what to type to learn more; status 2."""
    assert _run(capsys, monkeypatch, ValueError(), *words) == (2, line)


def test_a_question_that_is_answered_with_no_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _run(capsys, monkeypatch, typer.Abort(), "work") == (1, "program: aborted\n")


@pytest.mark.promise("cli-ctrl-moment")
def test_ctrl_c_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt: Callable[[], Exception] = KeyboardInterrupt  # type: ignore[assignment]
    assert _run(capsys, monkeypatch, interrupt(), "work") == (130, "")


@pytest.mark.promise("cli-ctrl-moment")
@pytest.mark.parametrize(
    ("start", "loaded"),
    [
        ("sequitur._entry.sequitur()", "sequitur.cli.main"),
        ("sequitur._entry.produce_events()", "sequitur.producer.daemon.cli"),
        ("runpy.run_module('sequitur.producer', run_name='__main__')", "sequitur.errors"),
        ("runpy.run_module('sequitur', run_name='__main__')", "sequitur.errors"),
    ],
)
def test_ctrl_c_while_modules_load_says_nothing(start: str, loaded: str) -> None:
    """Loading takes a second or two, and a traceback of imports helps nobody."""
    program = f"""
        import os, runpy, signal, sys
        import sequitur._entry

        class Interrupt:
            def find_spec(self, name, path, target=None):
                if name == "{loaded}":
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Interrupt())
        {start}
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.promise("cli-ctrl-moment")
def test_ctrl_c_while_a_broker_is_silent_says_nothing() -> None:
    """A broker that accepts and does not answer is waited for; the user need not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_TIMEOUT_S)
        servers = f"127.0.0.1:{listener.getsockname()[1]}"
        words = ["verify", "t", "--bootstrap-servers", servers]
        with subprocess.Popen(
            [sys.executable, "-m", "sequitur", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as run:  # fmt: skip
            listener.accept()[0].close()  # the look whether somebody is there
            client, _ = listener.accept()
            with client:
                run.send_signal(signal.SIGINT)
                said = run.communicate(timeout=_TIMEOUT_S)
    assert (run.returncode, said) == (130, ("", ""))


@pytest.mark.promise("cli-broker-answers", "cli-client-library-something")
@pytest.mark.parametrize(
    "words",
    [
        ("verify", "t", "--bootstrap-servers", _NOWHERE),
        ("dlq", "list", "--bootstrap-servers", _NOWHERE),
        ("dlq", "show", "0:1", "--bootstrap-servers", _NOWHERE),
        ("subscription", "list", "--bootstrap-servers", _NOWHERE),
        (
            "subscription",
            "create",
            "s",
            "--topic=t",
            "--position=latest",
            "--bootstrap-servers",
            _NOWHERE,
        ),
        ("subscription", "reset", "s", "--to-earliest", "--bootstrap-servers", _NOWHERE),
        ("subscription", "maintain", "--bootstrap-servers", _NOWHERE),
        ("topic", "get", "t", "--bootstrap-servers", _NOWHERE),
        ("topic", "get-retention", "--bootstrap-servers", _NOWHERE),
        ("topic", "set-message-ttl", "t", "--messageTTL", "1h", "--bootstrap-servers", _NOWHERE),
        ("retention", "run", "--bootstrap-servers", _NOWHERE),
    ],
)
def test_a_command_without_a_broker_is_refused_in_one_line(words: tuple[str, ...]) -> None:
    """The address and the reason stand in it, and no client adds lines of its own."""
    environ = {
        "SEQUITUR_REORDER_INPUT_TOPICS": "t",
        "SEQUITUR_REORDER_OUTPUT_TOPIC": "o",
        "SEQUITUR_REORDER_EVENT_TIME": "json:t",
        "SEQUITUR_REORDER_CHECKPOINT": "nowhere",
    }
    run = subprocess.run(
        [sys.executable, "-m", "sequitur", *words],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        env={**os.environ, **environ},
    )  # fmt: skip
    refused = f"sequitur: no broker can be reached: {_NOWHERE}: Connection refused\n"
    assert (run.returncode, run.stdout, run.stderr) == (3, "", refused)


@pytest.mark.promise("cli-broker-answers")
def test_each_address_that_refuses_is_named() -> None:
    """Who has several brokers sees what is wrong with each."""
    kafka = KafkaSettings(bootstrap_servers=f"{_NOWHERE},[::1]:1,127.0.0.1:2")
    with pytest.raises(BrokerUnreachableError) as refused:
        require_broker(kafka)
    assert f"{_NOWHERE}: Connection refused; [::1]:1: " in str(refused.value)
    assert "127.0.0.1:2: Connection refused" in str(refused.value)


async def _within_a_loop(call: Callable[[], None]) -> None:
    call()


@pytest.mark.promise("cli-broker-answers")
@pytest.mark.parametrize("in_notebook", [False, True])
def test_a_listener_that_is_no_broker_is_named(*, in_notebook: bool) -> None:
    """It accepts and hangs up: there is no use in waiting for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def hang_up() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        ask = functools.partial(require_broker, KafkaSettings(bootstrap_servers=address))
        with pytest.raises(RetriableError, match=address):
            asyncio.run(_within_a_loop(ask)) if in_notebook else ask()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_what_a_program_prints_may_quote_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's name may have bytes that are no UTF-8; standard error takes them by itself."""
    app = typer.Typer()
    app.command()(lambda: typer.echo("half \ud83d, and \udcff.log"))
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "utf-8", write_through=True))
    with pytest.raises(SystemExit) as ended:
        run_program("program", app, errors=())
    assert (ended.value.code, printed.getvalue()) == (None, b"half \\ud83d, and \\udcff.log\n")


def test_public_names_are_loaded_when_they_are_used() -> None:
    assert {name for name in sequitur.__all__ if getattr(sequitur, name) is None} == set()
    assert dir(sequitur) == sorted(sequitur.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = sequitur.nonsense


@pytest.mark.promise("cli-progress-json")
def test_what_is_printed_beside_a_program_s_own_output_goes_to_standard_error() -> None:
    """By Python, by C and by children; once the block is over, standard output is as it was."""
    program = """if True:
        import os
        from sequitur.base.program import printing_to_stderr, take_stdout
        print("before")
        with printing_to_stderr():
            print("within")
            os.write(1, b"bytes within\\n")
        print("between")
        output = take_stdout()
        print("after", flush=True)
        os.system("echo child after")
        print("own", file=output)
    """
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=True,
    )  # fmt: skip
    assert run.stdout == "before\nbetween\nown\n"
    assert sorted(run.stderr.splitlines()) == ["after", "bytes within", "child after", "within"]

"""The embedded broker lives through what befalls it on a user's machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from typer.testing import CliRunner

from sequitur.base import ports as _ports
from sequitur.cli import broker as _broker_cli
from sequitur.embedded import EmbeddedBroker
from sequitur.errors import BrokerStartError, JarHashError, JavaError, PortInUseError
from sequitur.pipelines.jars import LOCK_FILE, cache_directory, locked_jars
from tests.support.brokers import answers
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A folder for a broker; whatever runs there at the end is killed."""
    yield tmp_path / "broker"
    EmbeddedBroker(tmp_path / "broker").kill()


def _record(directory: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((directory / "broker.json").read_text())
    return record


def _sequitur(directory: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    base = {k: v for k, v in os.environ.items() if k != "KAFKA_BOOTSTRAP_SERVERS"}
    return subprocess.run(
        [sys.executable, "-m", "sequitur", "broker", *words],
        env={**base, "SEQUITUR_BROKER_DIR": str(directory), **environ},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


@pytest.mark.test_all
def test_another_program_finds_it_by_its_folder(directory: Path) -> None:
    """Up, status and down are three programs; two ups at once make one broker."""
    ups: list[subprocess.CompletedProcess[str]] = []
    threads = [
        threading.Thread(target=lambda: ups.append(_sequitur(directory, "up"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    broker = EmbeddedBroker(directory)
    servers = broker.bootstrap_servers
    assert [up.stdout for up in ups] == [f"export KAFKA_BOOTSTRAP_SERVERS={servers}\n"] * 2, ups

    status = _sequitur(directory, "status", "--json")
    assert status.returncode == 0
    facts = json.loads(status.stdout)
    assert (facts["running"], facts["answering"]) == (True, True)
    assert (facts["bootstrap_servers"], facts["pid"]) == (servers, broker.status().pid)

    # The address in the environment may be this broker's own, left there by an earlier `up`.
    assert _sequitur(directory, "down", KAFKA_BOOTSTRAP_SERVERS=servers).returncode == 0
    assert not broker.status().running
    gone = _sequitur(directory, "status", KAFKA_BOOTSTRAP_SERVERS=servers)
    assert gone.returncode == 1
    assert "running           no" in gone.stdout


@pytest.mark.promise("cli-sequitur-broker-dir")
def test_a_foreign_broker_in_the_environment_is_used(directory: Path) -> None:
    """Then none is started, and that is said."""
    address = f"127.0.0.1:{_ports.choose_free()}"
    up = _sequitur(directory, "up", KAFKA_BOOTSTRAP_SERVERS=address)
    assert up.stdout == f"export KAFKA_BOOTSTRAP_SERVERS={address}\n"
    assert f"the broker at {address} is used, and none is started" in up.stderr
    assert not directory.exists()
    status = _sequitur(directory, "status", KAFKA_BOOTSTRAP_SERVERS=address)
    assert status.returncode == 1
    assert "answering         no" in status.stdout


@pytest.mark.test_all
@pytest.mark.promise("cli-sequitur-broker-dir")
def test_its_folder_by_a_flag_is_meant_whatever_the_environment_says(directory: Path) -> None:
    other = {"KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{_ports.choose_free()}"}
    status = _sequitur(Path("unused"), "status", "--json", "--dir", str(directory), **other)
    assert json.loads(status.stdout)["directory"] == str(directory)
    try:
        up = _sequitur(Path("unused"), "up", "--dir", str(directory), **other)
        servers = EmbeddedBroker(directory).status().bootstrap_servers
        assert up.stdout == f"export KAFKA_BOOTSTRAP_SERVERS={servers}\n", up.stderr
        assert servers not in other.values()
    finally:
        EmbeddedBroker(directory).stop()


def test_a_stale_pid_is_nobody_s_business(directory: Path) -> None:
    """After a crash the recorded pid may be another program's: it is left alone."""
    directory.mkdir(parents=True)
    with subprocess.Popen(["sleep", "100"]) as other:
        record = {"port": _ports.choose_free(), "controller_port": 1, "pid": other.pid}
        (directory / "broker.json").write_text(json.dumps(record))
        broker = EmbeddedBroker(directory)
        assert not broker.status().running
        broker.stop()
        broker.kill()
        assert broker.start() == f"127.0.0.1:{record['port']}"
        assert _record(directory)["pid"] != other.pid
        broker.stop()
        assert other.poll() is None
        other.kill()


@pytest.mark.test_all
def test_an_occupied_port_is_avoided_unless_it_was_asked_for(directory: Path) -> None:
    """With port 0 another is chosen; a port asked for is named in the error."""
    with socket.create_server(("127.0.0.1", _ports.choose_free())) as foreign:
        port = foreign.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is in use"):
            EmbeddedBroker(directory, port=port).start()
        directory.mkdir(exist_ok=True)
        (directory / "broker.json").write_text(json.dumps({"port": port, "controller_port": port}))
        with EmbeddedBroker(directory) as broker:
            assert broker.bootstrap_servers != f"127.0.0.1:{port}"
            assert answers(broker.bootstrap_servers)
            taken = int(broker.bootstrap_servers.rpartition(":")[2])
            with pytest.raises(BrokerStartError, match=f"already runs on port {taken}"):
                EmbeddedBroker(directory, port=port).start()


@pytest.mark.test_all
@pytest.mark.promise("cli-sequitur-broker")
def test_the_usual_port_is_taken_when_it_is_free(directory: Path) -> None:
    """Also where the broker had another before, since settings name the usual one."""
    usual = _ports.choose_free()
    broker = EmbeddedBroker(directory, usual_port=usual)
    with socket.create_server(("127.0.0.1", usual)), broker:
        assert broker.bootstrap_servers != f"127.0.0.1:{usual}"
    with broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{usual}"


@pytest.mark.promise("cli-sequitur-broker")
@pytest.mark.parametrize(("port", "is_told"), [(9092, False), (9093, True)])
def test_a_port_that_is_not_the_usual_one_is_told(
    directory: Path, monkeypatch: pytest.MonkeyPatch, port: int, is_told: bool
) -> None:
    """Else a job whose settings say 9092 would reach somebody else's broker."""
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr(EmbeddedBroker, "start", lambda _: f"127.0.0.1:{port}")
    up = CliRunner().invoke(_broker_cli.broker_app, ["up", "--dir", str(directory)])
    assert up.stdout == f"export KAFKA_BOOTSTRAP_SERVERS=127.0.0.1:{port}\n"
    assert ("not the usual port 9092, which another program had" in up.stderr) == is_told


@pytest.mark.test_all
def test_a_port_taken_in_between_is_avoided(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may take the port after our look and before Kafka's: the next one is tried."""
    with socket.create_server(("127.0.0.1", _ports.choose_free())) as foreign:
        taken = foreign.getsockname()[1]
        choices = iter([taken])
        choose = _ports.choose_free
        monkeypatch.setattr(_ports, "choose_free", lambda avoid=(): next(choices, choose(avoid)))
        with EmbeddedBroker(directory) as broker:
            assert broker.bootstrap_servers != f"127.0.0.1:{taken}"


@pytest.mark.test_all
def test_a_broker_that_does_not_come_up_shows_its_log(directory: Path) -> None:
    """The last lines say why, and nothing is left running."""
    broker = EmbeddedBroker(directory, options={"num.network.threads": "none"})
    with pytest.raises(BrokerStartError) as failed:
        broker.start()
    assert "num.network.threads" in str(failed.value)
    assert not broker.status().running
    # What is wrong only when it starts, after the data was formatted.
    broker = EmbeddedBroker(directory, options={"metric.reporters": "no.such.Reporter"})
    with pytest.raises(BrokerStartError, match="ended while it started") as failed:
        broker.start()
    assert "no.such.Reporter" in str(failed.value)
    assert str(broker.log_path) in str(failed.value)
    assert not broker.status().running


def test_one_that_never_answers_is_ended(directory: Path) -> None:
    """Patience has an end, and no process is left behind."""
    broker = EmbeddedBroker(directory, start_timeout_s=0.2)
    with pytest.raises(BrokerStartError, match=r"did not answer within 0\.2 s"):
        broker.start()
    assert not psutil.pid_exists(_record(directory)["pid"])


def test_no_java_is_told(directory: Path, tmp_path: Path) -> None:
    """A sentence, not a traceback, that says what to install."""
    up = _sequitur(directory, "up", PATH=str(tmp_path), JAVA_HOME="")
    assert up.returncode != 0
    assert "Java is not installed" in up.stderr
    assert "apt-get install openjdk-17-jre-headless" in up.stderr
    assert "Traceback" not in up.stderr


def test_an_old_java_is_told(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka 4 needs 17: said before anything is started."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.27\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="is Java 11, too old"):
        EmbeddedBroker(directory).start()


def test_a_second_run_fetches_nothing_and_starts_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    locked_jars("broker")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert all(jar.is_file() for jar in locked_jars("broker"))


def test_a_jar_with_a_wrong_hash_is_refused(tmp_path: Path) -> None:
    """Ivy's real jar, a lock that names another hash: refused by name, and not kept."""
    name = "org.apache.commons:commons-pool2:2.13.1"
    lines = LOCK_FILE.read_text().splitlines()
    actual = next(line for line in lines if line.startswith(f'"{name}" = ')).split('"')[3]
    wrong = "0" * 64
    lock = tmp_path / "jars.lock"
    lock.write_text(f'[spark]\n"{name}" = "{wrong}"\n')
    with pytest.raises(JarHashError) as refused:
        locked_jars("spark", lock_file=lock, cache=tmp_path)
    assert all(part in str(refused.value) for part in (name, wrong, actual))
    assert list(tmp_path.rglob("*.jar")) == []
    lock.write_text(f'[spark]\n"{name}" = "{actual}"\n')
    (jar,) = locked_jars("spark", lock_file=lock, cache=tmp_path)
    kept = cache_directory() / "jars" / jar.parent.name / jar.name
    assert not kept.exists() or jar.read_bytes() == kept.read_bytes()

"""Settings come from file, environment and flags, and wrong ones are refused by name."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from pydantic import Field, SecretStr
from typer.testing import CliRunner

from sequitur.base.flags import given_flags, with_flags
from sequitur.base.settings import Section, Settings, load_settings
from sequitur.base.units import Duration, Size, format_duration
from sequitur.errors import SettingsError
from sequitur.kafka.settings import KafkaSettings
from sequitur.producer.daemon.settings import ProduceJob
from tests.support.tree import ROOT


class _ReorderSection(Section):
    topic: str = Field(description="Where to read")
    delay: Duration = Field(default=timedelta(seconds=10), description="How long to wait")
    buffer: Size = Field(default=1024, description="How much to hold")
    drain: bool = Field(default=False, description="Release what is held")


class _TextSection(Section):
    words: tuple[str, ...] = Field(default=(), description="Some texts")
    secret: SecretStr | None = Field(default=None, description="A password")
    path: Path | None = Field(default=None, description="A file")


class _Texts(Settings):
    reorder: _TextSection = _TextSection()


class _Job(Settings):
    kafka: KafkaSettings
    reorder: _ReorderSection


_GIVEN = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9092", "SEQUITUR_REORDER_TOPIC": "readings"}


def _load(
    environ: dict[str, str] | None = None,
    config: Path | None = None,
    **flags: object,
) -> _Job:
    return load_settings(
        _Job, config=config, environ=_GIVEN if environ is None else environ, flags=flags
    )


def test_the_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """Each layer replaces single settings of the one below it, not whole sections."""
    config = tmp_path / "job.toml"
    config.write_text('[reorder]\ntopic = "file"\ndelay = "1 s"\nbuffer = "1 KiB"\n')
    environ = {**_GIVEN, "SEQUITUR_REORDER_TOPIC": "env", "SEQUITUR_REORDER_DELAY": "2 s"}
    settings = _load(environ, config, delay="3 s")
    assert _ReorderSection(topic="env", delay=timedelta(seconds=3), buffer=1024) == settings.reorder


def test_the_broker_that_is_already_there_is_taken_from_the_environment() -> None:
    """KAFKA_BOOTSTRAP_SERVERS is enough; our own variable is more exact and wins."""
    assert _load().kafka.bootstrap_servers == "127.0.0.1:9092"
    environ = {**_GIVEN, "SEQUITUR_KAFKA_BOOTSTRAP_SERVERS": "other:1"}
    assert _load(environ).kafka.bootstrap_servers == "other:1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 s", timedelta(seconds=10)),
        ("500ms", timedelta(milliseconds=500)),
        ("2 min", timedelta(minutes=2)),
        ("1.5 h", timedelta(minutes=90)),
        (2, timedelta(seconds=2)),
        ("0.25", timedelta(milliseconds=250)),
    ],
)
def test_durations_are_given_with_their_unit(text: object, expected: timedelta) -> None:
    """A bare number counts seconds, as in TOML."""
    assert _load(delay=text).reorder.delay == expected


@pytest.mark.parametrize("text", ["", "10 parsecs", "-1 s", "ten", True])
def test_a_wrong_duration_is_refused_by_name(text: object) -> None:
    """The message says which setting, what it was and what it should be."""
    with pytest.raises(SettingsError, match=r"^reorder\.delay = .*(expected a duration|greater)"):
        _load(delay=text)


@pytest.mark.parametrize("text", ["36501 d", "99999999999 d", 1e20, float("inf")])
def test_a_duration_that_no_clock_counts_is_refused_by_name(text: object) -> None:
    with pytest.raises(SettingsError, match=r"^reorder\.delay = .*expected at most 36500 d$"):
        _load(delay=text)
    assert _load(delay="36500 d").reorder.delay == timedelta(days=36_500)


def test_a_size_has_a_unit() -> None:
    """Binary and decimal units differ, as everywhere."""
    assert _load(buffer="64 MiB").reorder.buffer == 64 * 1024 * 1024
    assert _load(buffer="500 kB").reorder.buffer == 500_000
    with pytest.raises(SettingsError, match=r"^reorder\.buffer = 'big': expected a size"):
        _load(buffer="big")


def test_all_that_is_missing_is_named_at_once_with_the_ways_to_give_it() -> None:
    """Nobody has to start the program once for each missing setting."""
    with pytest.raises(SettingsError) as caught:
        _load({})
    first, second = str(caught.value).splitlines()
    assert "kafka.bootstrap_servers" in first
    assert "KAFKA_BOOTSTRAP_SERVERS" in first
    assert "SEQUITUR_REORDER_TOPIC" in second
    assert "--topic" in second


def test_an_unknown_variable_is_refused_with_the_nearest_known() -> None:
    """A misspelt variable that is ignored would change what the job does, silently."""
    with pytest.raises(SettingsError, match=r"SEQUITUR_REORDER_DELY; did you mean .*_DELAY\?"):
        _load({**_GIVEN, "SEQUITUR_REORDER_DELY": "1 s"})
    with pytest.raises(SettingsError, match="SEQUITUR_REODER_DELAY"):
        _load({**_GIVEN, "SEQUITUR_REODER_DELAY": "1 s"})


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[reorder]\ndely = '1 s'\n", r"unknown setting reorder\.dely; did you mean delay\?"),
        ("[reoder]\n", r"unknown section \[reoder\]; did you mean reorder\?"),
        ("delay = 1\n", r"unknown section \[delay\]"),
        ("reorder = 3\n", r"expected a section \[reorder\]"),
        ("[reorder\n", "no valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, toml: str, message: str) -> None:
    """Unknown sections and settings are errors, with what was probably meant."""
    config = tmp_path / "job.toml"
    config.write_text(toml)
    with pytest.raises(SettingsError, match=message):
        _load(config=config)


def test_a_file_may_hold_sections_of_other_programs(tmp_path: Path) -> None:
    """One TOML file serves the daemon and the job."""
    config = tmp_path / "all.toml"
    config.write_text('[produce]\ntopic = "x"\n[reorder]\ndelay = "1 s"\n')
    assert _load(config=config).reorder.delay == timedelta(seconds=1)


def test_a_missing_file_is_named() -> None:
    """The path that was given stands in the message."""
    from pathlib import Path  # noqa: PLC0415 - the module needs it for types only

    with pytest.raises(SettingsError, match=r"nowhere\.toml: cannot be read"):
        _load(config=Path("nowhere.toml"))


@pytest.mark.promise("in-password-settings")
def test_a_password_is_never_printed() -> None:
    """Neither the settings' own text nor an error about them shows a secret."""
    environ = {**_GIVEN, "SEQUITUR_KAFKA_SASL_PASSWORD": "tell-nobody"}
    with pytest.raises(SettingsError) as caught:
        _load(environ)
    assert "tell-nobody" not in str(caught.value)
    complete = {
        **environ,
        "SEQUITUR_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SEQUITUR_KAFKA_SASL_MECHANISM": "PLAIN",
        "SEQUITUR_KAFKA_SASL_USERNAME": "me",
    }
    settings = _load(complete)
    assert "tell-nobody" not in repr(settings)
    assert "tell-nobody" not in " ".join(given_flags(settings))
    assert settings.kafka.librdkafka()["sasl.password"] == "tell-nobody"
    assert 'password="tell-nobody"' in settings.kafka.java()["sasl.jaas.config"]
    assert settings.kafka.aiokafka()["sasl_plain_password"] == "tell-nobody"


@pytest.mark.parametrize("address", ["", "host", "host:", "host:port", "a:1,", "a:1 b:2", ":1"])
def test_a_wrong_address_is_refused(address: str) -> None:
    """An address has a port, and several are separated by commas."""
    with pytest.raises(SettingsError, match="expected host:port"):
        _load({**_GIVEN, "KAFKA_BOOTSTRAP_SERVERS": address})


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("host:0", "expected a port from 1 to 65535, not 0"),
        ("127.0.0.1:9092,host:99999", "expected a port from 1 to 65535, not 99999"),
        ("a..b:9092", "'a..b' is not the name of a host"),
        (f"{'a' * 64}:9092", "is not the name of a host"),
        ("a\0b:9092", r"'a\\x00b' is not the name of a host"),
    ],
)
def test_an_address_that_can_be_no_brokers_is_refused(address: str, told: str) -> None:
    """One among good ones ends the first connection to it in an error of a resolver or socket."""
    with pytest.raises(SettingsError, match=rf"^kafka\.bootstrap_servers = .*: .*{told}"):
        _load({**_GIVEN, "KAFKA_BOOTSTRAP_SERVERS": address})


@pytest.mark.parametrize("given", ["gr\udcf6sse", ["a", "half \ud83d"]])
def test_text_that_is_no_utf8_is_refused_by_name(given: object) -> None:
    """A terminal of another encoding gives it; no broker and no file would take it."""
    with pytest.raises(SettingsError, match=r"^reorder\.words = .*: expected UTF-8"):
        load_settings(_Texts, config=None, environ={}, flags={"words": given})
    with pytest.raises(SettingsError, match=r"^kafka\.bootstrap_servers = .*: expected UTF-8"):
        _load({**_GIVEN, "KAFKA_BOOTSTRAP_SERVERS": "\udcf6:9092"})


def test_a_password_that_is_no_utf8_is_refused_unseen() -> None:
    """Its name alone is told."""
    with pytest.raises(SettingsError) as refused:
        load_settings(
            _Texts, config=None, environ={"SEQUITUR_REORDER_SECRET": "sesam\udcf6"}, flags={}
        )
    assert str(refused.value) == "reorder.secret: expected UTF-8, and no half of a surrogate pair"


def test_a_path_may_be_any_bytes() -> None:
    """The file system takes what is no UTF-8, too."""
    found = load_settings(_Texts, config=None, environ={}, flags={"path": "gr\udcf6sse"})
    assert found.reorder.path == Path("gr\udcf6sse")


def test_settings_given_on_as_flags_are_the_same_settings() -> None:
    """A program started by another sees the very same settings, whatever its environment."""
    settings = _load(delay="10 s", buffer="1 MiB", drain=True)
    words = given_flags(settings)
    assert words == [
        "--bootstrap-servers", "127.0.0.1:9092", "--security-protocol", "PLAINTEXT",
        "--system-prefix", "sequitur", "--topic", "readings", "--delay", "10 s",
        "--buffer", "1048576", "--drain",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0 ms"),
        (timedelta(milliseconds=1500), "1500 ms"),
        (timedelta(seconds=90), "90 s"),
        (timedelta(days=2), "2 d"),
    ],
)
def test_a_duration_is_written_as_it_is_read(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text
    assert _load(delay=text).reorder.delay == duration


def test_the_help_of_a_flag_tells_its_default_and_one_sentence_the_variable() -> None:
    """Nobody has to look a variable's name up, and nothing of it is taken for markup."""
    app = typer.Typer()

    @app.command()
    @with_flags(_Job)
    def job(settings: _Job) -> None:
        """Do nothing."""

    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "300"})
    assert "How long to wait (10 s)" in result.output
    assert "the variable SEQUITUR_<SECTION>_<FIELD>" in result.output
    assert "(reorder)" in result.output


def test_wrong_settings_end_a_program_with_status_2_and_the_sentence() -> None:
    """The command line refuses as the settings do, without a traceback."""
    app = typer.Typer()

    @app.command()
    @with_flags(_Job)
    def job(settings: _Job) -> None:
        """Do nothing."""

    result = CliRunner().invoke(app, ["--topic", "t", "--delay", "ten"], env=_GIVEN)
    assert result.exit_code == 2
    assert "reorder.delay = 'ten': expected a duration" in result.output


@pytest.mark.promise("in-client-right-sends")
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "events.example"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    """Refused by name, before anything listens; with a token, or on loopback, it is taken."""
    source = f"http:{host}:8080"
    with pytest.raises(SettingsError, match=r"listens beyond this machine: expected http_token"):
        _load_produce(source=source)
    token = {"SEQUITUR_PRODUCE_HTTP_TOKEN": "tell-nobody"}
    settings = _load_produce(token, source=source)
    assert "tell-nobody" not in repr(settings)
    assert "tell-nobody" not in " ".join(given_flags(settings))
    for own in ("127.0.0.1", "127.1.2.3", "localhost", "[::1]"):
        _load_produce(source=f"http:{own}:8080")


@pytest.mark.parametrize("token", ["", "two words", "t\u00f6ken", "line\n"])
def test_a_token_that_no_header_can_carry_is_refused_unseen(token: str) -> None:
    with pytest.raises(SettingsError) as caught:
        _load_produce({"SEQUITUR_PRODUCE_HTTP_TOKEN": token})
    assert str(caught.value) == (
        "produce.http_token: expected printable ASCII characters without spaces"
    )


def _load_produce(environ: dict[str, str] | None = None, **flags: object) -> ProduceJob:
    given = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9092", **(environ or {})}
    return load_settings(ProduceJob, config=None, environ=given, flags={"topic": "t", **flags})


_SERVICE = {
    "SEQUITUR_SERVICE_HOST": "10.96.0.7",
    "SEQUITUR_SERVICE_PORT": "8080",
    "SEQUITUR_SERVICE_PORT_EVENTS": "8080",
    "SEQUITUR_PORT": "tcp://10.96.0.7:8080",
    "SEQUITUR_PORT_8080_TCP": "tcp://10.96.0.7:8080",
    "SEQUITUR_PORT_8080_TCP_PROTO": "tcp",
    "SEQUITUR_PORT_8080_TCP_PORT": "8080",
    "SEQUITUR_PORT_8080_TCP_ADDR": "10.96.0.7",
    "SEQUITUR_PORT_53_UDP": "udp://10.96.0.7:53",
    "SEQUITUR_SERVICE_SERVICE_HOST": "10.96.0.9",
    "SEQUITUR_REORDER_SERVICE_HOST": "10.96.0.8",
    "SEQUITUR_REORDER_SERVICE_PORT": "9400",
    "SEQUITUR_REORDER_PORT": "tcp://10.96.0.8:9400",
    "SEQUITUR_REORDER_PORT_9400_TCP": "tcp://10.96.0.8:9400",
}


@pytest.mark.promise("in-kubernetes-sets-variables")
def test_what_kubernetes_sets_for_a_service_is_no_setting() -> None:
    """Every pod beside a service named sequitur has these, and every program starts with them."""
    assert _load({**_GIVEN, **_SERVICE}) == _load()
    assert _load_produce(_SERVICE) == _load_produce()


@pytest.mark.promise("in-kubernetes-sets-variables")
@pytest.mark.parametrize(
    "variable",
    [
        "SEQUITUR_SERVICE_HOST_",
        "SEQUITUR_SERVICEPORT",
        "SEQUITUR_PORTS",
        "SEQUITUR_REORDER_PORT_X",
        "SEQUITUR_REORDER_DELY",
        "SEQUITUR_OTHER_SERVICE_PORT",  # without its SERVICE_HOST
    ],
)
def test_a_misspelt_setting_beside_a_service_is_refused(variable: str) -> None:
    """The exception is for exactly what Kubernetes sets."""
    with pytest.raises(SettingsError, match=f"unknown environment variable {variable}"):
        _load({**_GIVEN, **_SERVICE, variable: "1"})


def test_variables_of_the_tests_are_no_settings() -> None:
    """A program that a test starts has them, too."""
    asked = re.compile(r"os\.environ\.get\(\"(SEQUITUR_[A-Z_]+)")
    names = {
        name for path in (ROOT / "tests").rglob("*.py") for name in asked.findall(path.read_text())
    }
    assert "SEQUITUR_TEST_PATIENCE" in names
    assert _load(_GIVEN | dict.fromkeys(names, "1")) == _load()


def test_a_port_of_ours_is_still_a_setting() -> None:
    """Of the same name as a service's, it is told from that by its value."""
    with pytest.raises(SettingsError, match="unknown environment variable SEQUITUR_REORDER_PORT"):
        _load({**_GIVEN, **_SERVICE, "SEQUITUR_REORDER_PORT": "9400"})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"sasl_mechanism": "OAUTHBEARER", "sasl_username": "me"}, "expects a token"),
        ({"sasl_mechanism": "PLAIN", "sasl_token_file": __file__}, "expects sasl_mechanism OAUTH"),
        ({"security_protocol": "SSL", "sasl_token_file": __file__}, "expect security_protocol"),
        ({"security_protocol": "SSL", "ssl_key_password": "tell-nobody"}, "with ssl_key"),
    ],
)
def test_what_does_not_fit_together_is_refused(given: dict[str, str], problem: str) -> None:
    """Whatever way of logging in, and without showing a secret."""
    environ = {"SEQUITUR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL"}
    environ |= {f"SEQUITUR_KAFKA_{name.upper()}": value for name, value in given.items()}
    with pytest.raises(SettingsError, match=problem) as caught:
        _load({**_GIVEN, **environ})
    assert "tell-nobody" not in str(caught.value)


def test_a_token_is_for_all_but_jobs_on_spark() -> None:
    """Those log in by Java's client, too."""
    environ = {
        "SEQUITUR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "SEQUITUR_KAFKA_SASL_MECHANISM": "OAUTHBEARER",
        "SEQUITUR_KAFKA_SASL_TOKEN_FILE": __file__,
    }
    settings = _load({**_GIVEN, **environ})
    with pytest.raises(SettingsError, match=r"jobs on Spark cannot use it\..*--runner local"):
        settings.kafka.java()
    assert settings.kafka.librdkafka()["sasl.mechanism"] == "OAUTHBEARER"

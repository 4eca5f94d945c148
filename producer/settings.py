"""Settings: TOML, each with an environment twin and a flag; wrong ones are refused by name.

Every package of Sequitur describes its own settings as a `Section`; a program composes the sections
it needs into a `Settings` model and calls `load_settings`. Where a setting is given more than once,
the flag wins over the environment, and the environment over the file:

    flag  >  SEQUITUR_<SECTION>_<FIELD>  >  KAFKA_BOOTSTRAP_SERVERS  >  TOML  >  default

One TOML file serves all programs, so a section that a program does not use is passed over; a
section, setting or `SEQUITUR_` variable that *no* program knows is an error, since a misspelt
setting that is silently ignored is how a delay of ten minutes becomes one of ten seconds.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from producer._errors import ProducerError
from producer._units import Duration, Size, format_duration, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

__all__ = [
    "Duration",
    "KafkaSettings",
    "Section",
    "Settings",
    "SettingsError",
    "Size",
    "environment_name",
    "fields_of",
    "flag_name",
    "format_duration",
    "load_settings",
    "milliseconds",
]

ENVIRONMENT_PREFIX: Final = "SEQUITUR_"
SECTION_NAMES: Final = ("kafka", "broker", "producer", "produce", "reorder", "process")
"""Every section any of our programs knows; a program may use a subset."""

_NOT_SETTINGS: Final = frozenset(
    {
        "SEQUITUR_CACHE",
        "SEQUITUR_IVY_SETTINGS",
        # Of the tests:
        "SEQUITUR_KILL_ROUNDS",
        "SEQUITUR_KILL_SEED",
        "SEQUITUR_REQUIRE_CONTAINERS",
        "SEQUITUR_TEST_BROKER",
    }
)
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s,:\[\]]+):[0-9]{1,5}", re.ASCII)


class SettingsError(ProducerError, ValueError):
    """One or more settings are unknown, missing or wrong; the message names each of them."""


class Section(BaseModel):
    """A group of settings that belong together: one table of the TOML file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        hide_input_in_errors=True,  # it may hold a password
    )


class KafkaSettings(Section):
    """How to reach the brokers. The same settings serve every client, each in its own words."""

    bootstrap_servers: str = Field(
        description="Brokers to ask first, as host:port, separated by commas"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="How the connection is secured"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None, description="How we prove who we are, for the SASL protocols"
    )
    sasl_username: str | None = Field(default=None, description="User name for SASL")
    sasl_password: SecretStr | None = Field(
        default=None, description="Password for SASL; never printed"
    )
    ssl_ca: Path | None = Field(default=None, description="PEM file of the authority to trust")
    ssl_certificate: Path | None = Field(default=None, description="PEM file of our certificate")
    ssl_key: Path | None = Field(default=None, description="PEM file of our private key")

    @field_validator("bootstrap_servers")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        if any(_ADDRESS.fullmatch(address) is None for address in value.split(",")):
            raise ValueError("expected host:port, several separated by commas")
        return value

    @field_validator("ssl_ca", "ssl_certificate", "ssl_key")
    @classmethod
    def _is_there(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError("there is no such file")
        return value

    @model_validator(mode="after")
    def _sasl_is_complete(self) -> KafkaSettings:
        given = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if self.uses_sasl and None in given:
            raise ValueError(
                f"security_protocol {self.security_protocol} expects sasl_mechanism, "
                "sasl_username and sasl_password"
            )
        if not self.uses_sasl and given != (None, None, None):
            raise ValueError(
                f"sasl_* settings expect security_protocol SASL_PLAINTEXT or SASL_SSL, "
                f"not {self.security_protocol}"
            )
        if (self.ssl_certificate is None) != (self.ssl_key is None):
            raise ValueError("ssl_certificate and ssl_key are expected together")
        return self

    @property
    def uses_sasl(self) -> bool:
        """Whether the broker asks who we are by SASL."""
        return self.security_protocol.startswith("SASL_")

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.security_protocol.endswith("SSL")

    def librdkafka(self) -> dict[str, Any]:
        """These settings for confluent-kafka, in librdkafka's words."""
        options: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
        }
        if self.sasl_mechanism and self.sasl_username and self.sasl_password:
            options["sasl.mechanism"] = self.sasl_mechanism
            options["sasl.username"] = self.sasl_username
            options["sasl.password"] = self.sasl_password.get_secret_value()
        for name, path in self._pem_files("ssl.ca", "ssl.certificate", "ssl.key"):
            options[f"{name}.location"] = str(path)
        return options

    def java(self) -> dict[str, str]:
        """These settings for Kafka's Java client; Spark puts `kafka.` before each name.

        PEM files are given by content, since Java takes a certificate and its key in one.
        """
        options = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
        }
        if self.sasl_mechanism and self.sasl_username and self.sasl_password:
            module = (
                "org.apache.kafka.common.security.plain.PlainLoginModule"
                if self.sasl_mechanism == "PLAIN"
                else "org.apache.kafka.common.security.scram.ScramLoginModule"
            )
            user = _jaas_quoted(self.sasl_username)
            password = _jaas_quoted(self.sasl_password.get_secret_value())
            options["sasl.mechanism"] = self.sasl_mechanism
            options["sasl.jaas.config"] = f"{module} required username={user} password={password};"
        for name, path in self._pem_files(
            "ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key"
        ):
            options[name] = path.read_text()
            options[f"{name.split('.', 2)[0]}.{name.split('.', 2)[1]}.type"] = "PEM"
        return options

    def aiokafka(self) -> dict[str, Any]:
        """These settings for aiokafka's clients.

        Raises:
            SettingsError: A PEM file cannot be read.
        """
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "security_protocol": self.security_protocol,
        }
        if self.sasl_mechanism and self.sasl_username and self.sasl_password:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.get_secret_value()
        if self.uses_tls:
            from aiokafka.helpers import create_ssl_context  # noqa: PLC0415 - only TLS needs it

            try:
                options["ssl_context"] = create_ssl_context(
                    cafile=self.ssl_ca, certfile=self.ssl_certificate, keyfile=self.ssl_key
                )
            except (OSError, ValueError) as error:  # ssl's own errors are OSErrors
                names = ("ssl_ca", "ssl_certificate", "ssl_key")
                given = [f"{name} = {getattr(self, name)}" for name in names if getattr(self, name)]
                raise SettingsError(f"no PEM files: {', '.join(given)}: {error}") from error
        return options

    def _pem_files(self, ca: str, certificate: str, key: str) -> Iterator[tuple[str, Path]]:
        pairs = ((ca, self.ssl_ca), (certificate, self.ssl_certificate), (key, self.ssl_key))
        return ((name, path) for name, path in pairs if path is not None)


def _jaas_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Settings(BaseSettings):
    """The sections that one program uses, built by `load_settings`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings passes them by name
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load_settings` hands over: it has already read the environment, strictly."""
        return (init_settings,)


S = TypeVar("S", bound=Settings)
_Values = dict[str, dict[str, Any]]


def load_settings(
    model: type[S],
    *,
    config: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> S:
    """Read the settings of one program.

    Args:
        model: The sections the program uses.
        config: The TOML file, if there is one.
        environ: The environment, `os.environ` outside of tests.
        flags: Field name to value for every flag that was given; None means not given.

    Raises:
        SettingsError: A setting is unknown, missing or wrong. All of them are named at once.
    """
    sections = _sections(model)
    values: _Values = {name: {} for name in sections}
    for layer in (
        _from_toml(config, sections),
        _from_environment(environ, sections),
        _from_flags(flags, sections),
    ):
        for section, fields in layer.items():
            values[section].update(fields)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(details, sections) for details in error.errors()]
        raise SettingsError("\n".join(lines)) from None


def flag_name(field: str) -> str:
    """The flag of a field: `idle_timeout` is given as `--idle-timeout`."""
    return "--" + field.replace("_", "-")


def environment_name(section: str, field: str) -> str:
    """The environment twin of a setting."""
    return f"{ENVIRONMENT_PREFIX}{section}_{field}".upper()


def fields_of(model: type[Settings]) -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, field, description) of every setting of a program, in the order written."""
    for section, section_model in _sections(model).items():
        for field, info in section_model.model_fields.items():
            yield section, field, info


def _sections(model: type[Settings]) -> dict[str, type[Section]]:
    sections: dict[str, type[Section]] = {}
    for name, info in model.model_fields.items():
        if name not in SECTION_NAMES:
            raise TypeError(f"{model.__name__}.{name} is no section: {', '.join(SECTION_NAMES)}")
        if not (isinstance(info.annotation, type) and issubclass(info.annotation, Section)):
            raise TypeError(f"{model.__name__}.{name} must be annotated with a Section")
        sections[name] = info.annotation
    return sections


def _from_toml(config: Path | None, sections: Mapping[str, type[Section]]) -> _Values:
    if config is None:
        return {}
    try:
        document = tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{config}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{config}: no valid TOML: {error}") from error
    found: _Values = {}
    for name, table in document.items():
        if name not in SECTION_NAMES:
            raise SettingsError(f"{config}: unknown section [{name}]{_hint(name, SECTION_NAMES)}")
        if not isinstance(table, dict):
            raise SettingsError(f"{config}: {name} is {table!r}, expected a section [{name}]")
        if name in sections:
            found[name] = table
    return found


def _from_environment(environ: Mapping[str, str], sections: Mapping[str, type[Section]]) -> _Values:
    found: _Values = {}
    if "kafka" in sections and "KAFKA_BOOTSTRAP_SERVERS" in environ:
        found["kafka"] = {"bootstrap_servers": environ["KAFKA_BOOTSTRAP_SERVERS"]}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _NOT_SETTINGS:
            continue
        section, _, field = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
        if section not in SECTION_NAMES or not field:
            known = [environment_name(s, f) for s, m in sections.items() for f in m.model_fields]
            raise SettingsError(f"unknown environment variable {variable}{_hint(variable, known)}")
        if section in sections:
            if field not in sections[section].model_fields:
                known = [environment_name(section, f) for f in sections[section].model_fields]
                raise SettingsError(
                    f"unknown environment variable {variable}{_hint(variable, known)}"
                )
            found.setdefault(section, {})[field] = value
    return found


def _from_flags(flags: Mapping[str, Any], sections: Mapping[str, type[Section]]) -> _Values:
    found: _Values = {}
    for field, value in flags.items():
        if value is None:
            continue
        owners = [name for name, model in sections.items() if field in model.model_fields]
        if len(owners) != 1:
            raise SettingsError(f"unknown setting {flag_name(field)}")
        found.setdefault(owners[0], {})[field] = value
    return found


def _hint(name: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; expected one of {', '.join(names)}"


def _explain(details: ErrorDetails, sections: Mapping[str, type[Section]]) -> str:
    """One pydantic error as a sentence that names the setting, its value and what was expected."""
    path = [str(part) for part in details["loc"]]
    name = ".".join(path)
    if details["type"] == "extra_forbidden":
        section = sections.get(path[0])
        known = list(section.model_fields) if section is not None and len(path) > 1 else []
        return f"unknown setting {name}{_hint(path[-1], known) if known else ''}"
    if details["type"] == "missing" and len(path) == 2:  # noqa: PLR2004 - section and field
        section_name, field = path
        twin = environment_name(section_name, field)
        also = " or KAFKA_BOOTSTRAP_SERVERS" if name == "kafka.bootstrap_servers" else ""
        return (
            f"missing setting {name}: give it in the file, as {twin}{also}, "
            f"or by {flag_name(field)}"
        )
    message = details["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "expected").replace("String should", "expected to")
    if "password" in name or not path[1:]:  # a whole section may hold a password, too
        return f"{name}: {message}"
    return f"{name} = {details['input']!r}: {message}"

"""The section `[kafka]`: how to reach the brokers, in the words of each client.

Tokens for OAUTHBEARER come from the user's code, or from a file that another program renews.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from sequitur.base.settings import Section
from sequitur.base.units import MAX_PORT
from sequitur.errors import SettingsError
from sequitur.kafka.partition import EXPECTED, is_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_topic(value: object) -> object:
    """Return the value. Raise if it is text but no topic's name."""
    if isinstance(value, str) and not is_topic_name(value):
        raise ValueError(EXPECTED)
    return value


Topic = Annotated[str, BeforeValidator(check_topic)]
TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
"""Returns a token that is valid now. It is called for each login, and may keep one for a while."""


def aiokafka_provider(token_provider: TokenProvider) -> Any:
    """Return a provider in the form that aiokafka's clients take."""
    from aiokafka.abc import AbstractTokenProvider  # noqa: PLC0415 - few need the client

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
        async def token(self) -> str:
            return await token_provider()

    return Provider()


def read_token(path: Path) -> str:
    """Return the token in a file, without a newline at its end."""
    return path.read_text().strip()


_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s,:\[\]]+):[0-9]{1,5}", re.ASCII)
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

SYSTEM_PREFIX: Final = "sequitur"
SYSTEM_PREFIX_FORM: Final = "[A-Za-z0-9._]{1,200}"
"""`-` ends the prefix, so it is not in it: different prefixes give different names."""
_TOKEN_LIFE_S: Final = 60.0
"""librdkafka keeps a token with an unknown lifetime for so long."""


class KafkaSettings(Section):
    """How to reach the brokers. The same settings serve all clients.

    ::

        import os

        kafka = KafkaSettings(
            bootstrap_servers="broker-1:9093",
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="orders",
            sasl_password=os.environ["KAFKA_PASSWORD"],
        )
    """

    title = "Brokers"
    bootstrap_servers: str = Field(
        description="Brokers to connect to first, as host:port, separated by commas"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="How the connection is secured"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = (
        Field(default=None, description="SASL mechanism, for the SASL protocols")
    )
    sasl_username: str | None = Field(default=None, description="User name for SASL")
    sasl_password: SecretStr | None = Field(
        default=None, description="Password for SASL. Never printed"
    )
    sasl_token_file: Path | None = Field(
        default=None,
        description="File with the token for OAUTHBEARER. It is read for each login",
    )
    ssl_ca: Path | None = Field(
        default=None, description="PEM file of the trusted certificate authority"
    )
    ssl_certificate: Path | None = Field(
        default=None, description="PEM file of the client's certificate"
    )
    ssl_key: Path | None = Field(default=None, description="PEM file of the client's private key")
    ssl_key_password: SecretStr | None = Field(
        default=None, description="Password of the private key, if it has one. Never printed"
    )
    system_prefix: str = Field(
        default=SYSTEM_PREFIX,
        description="Prefix of system topics, groups and transactional ids",
    )

    @field_validator("system_prefix")
    @classmethod
    def _is_a_prefix(cls, value: str) -> str:
        if re.fullmatch(SYSTEM_PREFIX_FORM, value, re.ASCII) is None:
            raise ValueError("expected letters, digits, '.' and '_', at most 200")
        return value

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _joined(cls, value: object) -> object:
        """Join several addresses into one text."""
        if isinstance(value, str | bytes):
            return value
        several: list[Any] = [value]
        if isinstance(value, Iterable) and not isinstance(value, Mapping):
            several = list(value)
        for one in several:
            if not isinstance(one, str):
                told = f"expected host:port, or several, not {type(one).__name__}"
                raise ValueError(told)  # noqa: TRY004 - pydantic tells of no other
        return ",".join(several)

    @field_validator("bootstrap_servers")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        for address in value.split(","):
            if _ADDRESS.fullmatch(address) is None:
                raise ValueError("expected host:port, several separated by commas")
            host, _, port = address.rpartition(":")
            if not 1 <= int(port) <= MAX_PORT:
                raise ValueError(f"expected a port from 1 to {MAX_PORT}, not {port}")
            if not _may_be_host(host):
                raise ValueError(f"{host!r:.80} is not the name of a host")
        return value

    @field_validator("sasl_token_file", "ssl_ca", "ssl_certificate", "ssl_key")
    @classmethod
    def _is_there(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError("there is no such file")
        return value

    @model_validator(mode="after")
    def _sasl_is_complete(self) -> KafkaSettings:
        user = (self.sasl_username, self.sasl_password)
        given = (self.sasl_mechanism, *user, self.sasl_token_file)
        if not self.uses_sasl and any(part is not None for part in given):
            raise ValueError(
                f"sasl_* settings expect security_protocol SASL_PLAINTEXT or SASL_SSL, "
                f"not {self.security_protocol}"
            )
        if self.sasl_mechanism == "OAUTHBEARER":
            if user != (None, None):
                raise ValueError("OAUTHBEARER expects a token, and no sasl_username")
        elif self.sasl_token_file is not None:
            raise ValueError("sasl_token_file expects sasl_mechanism OAUTHBEARER")
        elif self.uses_sasl and None in (self.sasl_mechanism, *user):
            raise ValueError(
                f"security_protocol {self.security_protocol} expects sasl_mechanism, "
                "sasl_username and sasl_password"
            )
        if self.ssl_key_password is not None and self.ssl_key is None:
            raise ValueError("ssl_key_password is expected with ssl_key")
        if (self.ssl_certificate is None) != (self.ssl_key is None):
            raise ValueError("ssl_certificate and ssl_key are expected together")
        return self

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    def librdkafka(self) -> dict[str, Any]:
        """These settings for confluent-kafka, in librdkafka's words.

        Its own log, which goes to standard error, is off: what matters is raised as errors.
        """
        options: dict[str, Any] = {
            "log_level": 0,
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
        }
        if self.sasl_mechanism and self.sasl_username and self.sasl_password:
            options["sasl.mechanism"] = self.sasl_mechanism
            options["sasl.username"] = self.sasl_username
            options["sasl.password"] = self.sasl_password.get_secret_value()
        if self.sasl_mechanism == "OAUTHBEARER":
            token_file = self._token_file()
            options["sasl.mechanism"] = self.sasl_mechanism
            options["oauth_cb"] = lambda _: (read_token(token_file), time.time() + _TOKEN_LIFE_S)
        if self.ssl_key_password is not None:
            options["ssl.key.password"] = self.ssl_key_password.get_secret_value()
        for name, path in self._pem_files("ssl.ca", "ssl.certificate", "ssl.key"):
            options[f"{name}.location"] = str(path)
        return options

    def java(self) -> dict[str, str]:
        """These settings for Kafka's Java client. Spark puts `kafka.` before each name.

        PEM files are given by content, since Java takes a certificate and its key in one.

        Raises:
            SettingsError: The mechanism is OAUTHBEARER, which jobs on Spark do not support.
        """
        if self.sasl_mechanism == "OAUTHBEARER":
            raise SettingsError(
                "kafka.sasl_mechanism = 'OAUTHBEARER': jobs on Spark cannot use it. Give --runner "
                "local, or log in by SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or a client certificate"
            )
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
        if self.ssl_key_password is not None:
            options["ssl.key.password"] = self.ssl_key_password.get_secret_value()
        return options

    def aiokafka(self, token_provider: TokenProvider | None = None) -> dict[str, Any]:
        """These settings for aiokafka's clients.

        Args:
            token_provider: Gives the token for OAUTHBEARER; the token file by default.

        Raises:
            SettingsError: A PEM file cannot be read, or there is no token for OAUTHBEARER.
        """
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "security_protocol": self.security_protocol,
        }
        if self.sasl_mechanism and self.sasl_username and self.sasl_password:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.get_secret_value()
        if self.sasl_mechanism == "OAUTHBEARER":
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_oauth_token_provider"] = aiokafka_provider(
                token_provider or partial(_file_token, self._token_file())
            )
        elif token_provider is not None:
            raise SettingsError("a token_provider is expected with sasl_mechanism OAUTHBEARER only")
        if self.uses_tls:
            from aiokafka.helpers import create_ssl_context  # noqa: PLC0415 - only TLS needs it

            try:
                options["ssl_context"] = create_ssl_context(
                    cafile=self.ssl_ca,
                    certfile=self.ssl_certificate,
                    keyfile=self.ssl_key,
                    password=self._key_password,  # without one, OpenSSL would ask the terminal
                )
            except (OSError, ValueError) as error:  # ssl's own errors are OSErrors
                names = ("ssl_ca", "ssl_certificate", "ssl_key")
                given = [f"{name} = {getattr(self, name)}" for name in names if getattr(self, name)]
                raise SettingsError(f"no PEM files: {', '.join(given)}: {error}") from error
        return options

    def _key_password(self) -> str:
        return "" if self.ssl_key_password is None else self.ssl_key_password.get_secret_value()

    def _token_file(self) -> Path:
        if self.sasl_token_file is None:
            raise SettingsError(
                "kafka.sasl_mechanism = 'OAUTHBEARER' expects sasl_token_file, or in code a "
                "token_provider"
            )
        return self.sasl_token_file

    def _pem_files(self, ca: str, certificate: str, key: str) -> Iterator[tuple[str, Path]]:
        pairs = ((ca, self.ssl_ca), (certificate, self.ssl_certificate), (key, self.ssl_key))
        return ((name, path) for name, path in pairs if path is not None)


def _may_be_host(host: str) -> bool:
    """Return whether a resolver takes a name: some raise an error that looks like no answer."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable()


async def _file_token(path: Path) -> str:
    return await asyncio.to_thread(read_token, path)


def _jaas_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def system_name(kafka: KafkaSettings, name: str) -> str:
    """Return the full name of an object that an installation has once in a cluster."""
    return f"{kafka.system_prefix}-{name}"


def to_reach(kafka: KafkaSettings) -> KafkaSettings:
    """Return the settings without the parts that make no difference to connections."""
    if kafka.system_prefix == SYSTEM_PREFIX:
        return kafka
    return kafka.model_copy(update={"system_prefix": SYSTEM_PREFIX})


def settings_of(given: KafkaSettings | str | Iterable[str]) -> KafkaSettings:
    """Return settings unchanged, or make them from addresses."""
    if isinstance(given, KafkaSettings):
        return given
    return KafkaSettings.model_validate({"bootstrap_servers": given})

"""An embedded broker that asks for TLS and SASL, with an authority of its own."""

from __future__ import annotations

import base64
import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import trustme
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from sequitur.base import ports as _ports
from sequitur.producer import KafkaSettings
from tests.support.brokers import EmbeddedTestBroker
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

USER: Final = "alice"
PASSWORD: Final = 'tell-nobody "=, \\ not'
"""Has what needs quoting in SCRAM's messages and in Java's login configuration."""

_ADMIN_TIMEOUT_S: Final = PATIENCE_S
_SCRAM_ITERATIONS: Final = 4096
_LISTENERS: Final = {
    "PLAINTEXT": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
_MECHANISMS: Final = {
    "SASL_PLAINTEXT": ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"),
    "SASL_SSL": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_LOGIN_MODULES: Final = "org.apache.kafka.common.security"
_SCRAM: Final = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}


@dataclass(frozen=True, slots=True)
class PemFiles:
    """Files as the settings name them.

    Attributes:
        ca: The authority that signed the broker's certificate.
        other_ca: One that did not.
        certificate: A client's.
        key: Its private key.
        locked_key: The same, under `PASSWORD`.
    """

    ca: Path
    other_ca: Path
    certificate: Path
    key: Path
    locked_key: Path


class SecuredBroker:
    """A broker with a listener for each security protocol, and one that wants our certificate.

    `USER` may log in with `PASSWORD`, by each mechanism: on SASL_PLAINTEXT all but SCRAM-SHA-512,
    and whoever has a `token`.

    Args:
        folder: For the broker and the PEM files.
    """

    def __init__(self, folder: Path) -> None:
        authority, other = trustme.CA(), trustme.CA()
        self._ports: dict[str, int] = {}
        for listener in _LISTENERS:
            self._ports[listener] = _ports.choose_free(set(self._ports.values()))
        server = authority.issue_cert(_ports.HOST)
        self.files = _write_pem_files(folder, authority, other)
        self.broker = EmbeddedTestBroker(
            folder / "broker",
            port=self._ports["PLAINTEXT"],
            options=self._options(authority, server),
        )

    def __enter__(self) -> Self:
        self.broker.start()
        try:
            for mechanism in _SCRAM:
                self.set_password(mechanism, PASSWORD)
        except BaseException:
            self.broker.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def address(self, listener: str) -> str:
        return f"{_ports.HOST}:{self._ports[listener]}"

    def kafka(self, protocol: str, mechanism: str | None = None, **other: Any) -> KafkaSettings:
        """Settings that are let in, but for what is given otherwise."""
        given: dict[str, Any] = {
            "bootstrap_servers": self.address(protocol),
            "security_protocol": protocol,
        }
        if protocol.endswith("SSL"):
            given["ssl_ca"] = self.files.ca
        if mechanism is not None:
            given |= {
                "sasl_mechanism": mechanism,
                "sasl_username": USER,
                "sasl_password": PASSWORD,
            }
        return KafkaSettings(**{**given, **other})

    def set_password(self, mechanism: str, password: str) -> None:
        info = ScramCredentialInfo(_SCRAM[mechanism], _SCRAM_ITERATIONS)
        change = UserScramCredentialUpsertion(USER, info, password.encode())
        self._admin.alter_user_scram_credentials([change])[USER].result(_ADMIN_TIMEOUT_S)

    def make_topic(self, name: str, partitions: int = 1) -> None:
        new = NewTopic(name, num_partitions=partitions, replication_factor=1)
        self._admin.create_topics([new])[name].result(_ADMIN_TIMEOUT_S)

    @functools.cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address("PLAINTEXT"), "log_level": 0})

    def _options(self, authority: trustme.CA, server: trustme.LeafCert) -> dict[str, str]:
        addresses = {name: f"{name}://{_ports.HOST}:{port}" for name, port in self._ports.items()}
        options = {
            "listeners": ",".join(addresses.values()),
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in _LISTENERS.items()),
            "controller.quorum.voters": f"1@{self.address('CONTROLLER')}",
            "listener.name.mutual.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": b"".join(
                pem.bytes() for pem in server.cert_chain_pems
            ).decode(),
            "ssl.keystore.key": _pkcs8(server.private_key_pem.bytes()),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": authority.cert_pem.bytes().decode(),
        }
        quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        plain = f'{_LOGIN_MODULES}.plain.PlainLoginModule required user_{USER}="{quoted}";'
        scram = f"{_LOGIN_MODULES}.scram.ScramLoginModule required;"
        oauth = f"{_LOGIN_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
        for listener, mechanisms in _MECHANISMS.items():
            prefix = f"listener.name.{listener.lower()}"
            options[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(mechanisms)
            for mechanism in mechanisms:
                module = {"PLAIN": plain, "OAUTHBEARER": oauth}.get(mechanism, scram)
                options[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = module
        return options


def _write_pem_files(folder: Path, authority: trustme.CA, other: trustme.CA) -> PemFiles:
    folder.mkdir(parents=True, exist_ok=True)
    files = PemFiles(
        *(folder / f"{name}.pem" for name in ("ca", "other_ca", "client", "key", "locked"))
    )
    client = authority.issue_cert(f"{USER}.test")
    authority.cert_pem.write_to_path(files.ca)
    other.cert_pem.write_to_path(files.other_ca)
    for pem in client.cert_chain_pems:
        pem.write_to_path(files.certificate, append=True)
    client.private_key_pem.write_to_path(files.key)
    files.locked_key.write_text(
        _pkcs8(client.private_key_pem.bytes(), BestAvailableEncryption(PASSWORD.encode()))
    )
    return files


def token(claims: Mapping[str, object]) -> str:
    """A token that nobody has signed, which is what the broker takes if it is told nothing else."""
    parts = ({"alg": "none"}, claims)
    coded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return b".".join((*coded, b"")).decode()


def _pkcs8(key: bytes, lock: KeySerializationEncryption | None = None) -> str:
    """A private key in the only form that Kafka reads."""
    loaded = load_pem_private_key(key, None)
    pem = loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock or NoEncryption())
    return pem.decode()

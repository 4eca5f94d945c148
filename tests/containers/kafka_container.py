"""Kafka in a container, with the network of the host: it listens on 127.0.0.1 as all else does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

# testcontainers reads it on import. Its reaper is an image of its own, which not every machine can
# pull; we remove our containers ourselves.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from testcontainers.core.container import DockerContainer

from sequitur.base import ports as _ports
from sequitur.embedded import single_node_properties
from tests.support.brokers import wait_until_it_answers
from tests.support.compose_file import default_image
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping

_START_TIMEOUT_S: Final = 2 * PATIENCE_S
_LOG_LINES_SHOWN: Final = 30


def environment_name(server_property: str) -> str:
    """Name the variable from which a Kafka image takes a server property."""
    name = server_property.replace("_", "__").replace("-", "___").replace(".", "_")
    return f"KAFKA_{name.upper()}"


def container_of(environment: Mapping[str, str]) -> DockerContainer:
    """Return a container of the image under test, not started, on the network of the host."""
    image = os.environ.get("KAFKA_IMAGE") or default_image()
    return DockerContainer(image).with_envs(**environment).with_kwargs(network_mode="host")


class ContainerBroker:
    """One broker in a container, from the image of ``KAFKA_IMAGE``.

    The container survives `stop` and `kill` with its data, as a machine would, until `close`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        port = _ports.choose_free()
        properties = {
            **single_node_properties(port, _ports.choose_free({port})),
            "advertised.listeners": f"PLAINTEXT://{_ports.HOST}:{port}",
            "log.dirs": "/tmp/kafka-data",
            **options,
        }
        self.bootstrap_servers = f"{_ports.HOST}:{port}"
        environment = {environment_name(name): value for name, value in properties.items()}
        self._container = container_of({**environment, "KAFKA_HEAP_OPTS": "-Xmx512m"})
        self._started = False

    def start(self) -> str:
        """Start it, or resume it, unless it runs; return once it answers."""
        if not self._started:
            self._container.start()
            self._started = True
        elif self._state() == "paused":
            self._wrapped().unpause()
        elif self._state() != "running":
            self._wrapped().start()
        if not wait_until_it_answers(self.bootstrap_servers, _START_TIMEOUT_S):
            lines = self._wrapped().logs(tail=_LOG_LINES_SHOWN).decode("utf-8", "replace")
            raise RuntimeError(f"Kafka did not come up in its container; its last lines:\n{lines}")
        return self.bootstrap_servers

    def stop(self) -> None:
        """End it in order; what it holds stays."""
        if self._state() == "paused":
            self._wrapped().unpause()
        self._wrapped().stop()

    def kill(self) -> None:
        """End it by SIGKILL; what it holds stays."""
        if self._state() in {"running", "paused"}:
            self._wrapped().kill()
            self._wrapped().wait()

    def pause(self) -> None:
        self._wrapped().pause()

    def resume(self) -> None:
        if self._state() == "paused":
            self._wrapped().unpause()

    def close(self) -> None:
        if self._started:
            self._wrapped().remove(force=True, v=True)
            self._started = False

    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()

    def _state(self) -> str:
        container = self._wrapped()
        container.reload()
        return str(container.status)

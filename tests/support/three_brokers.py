"""A cluster of three brokers, whose partitions' leaders a test may move."""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.base import ports as _ports
from sequitur.pipelines.class_archive import ClassArchive
from sequitur.pipelines.jars import locked_jars
from sequitur.pipelines.java import find_java
from tests.support.brokers import POLL_S, EmbeddedTestBroker
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_NODES: Final = (1, 2, 3)
_HEAP_MIB: Final = 256
_TIMEOUT_S: Final = 2 * PATIENCE_S


class ThreeBrokers:
    """Brokers 1 to 3; the first is the controller, too, and stays.

    Args:
        directory: Gets a folder for each.
    """

    def __init__(self, directory: Path) -> None:
        ports: list[int] = []
        for _ in (*_NODES, "controller"):
            ports.append(_ports.choose_free(ports))
        *own, controller = ports
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")

        def formatted(node: int, port: int) -> EmbeddedTestBroker:
            options = _options(node, port, controller)
            folder = directory / str(node)
            _format(folder, cluster_id, options)
            return EmbeddedTestBroker(folder, port=port, options=options, heap_mib=_HEAP_MIB)

        with ThreadPoolExecutor(len(_NODES)) as pool:
            self._brokers = dict(zip(_NODES, pool.map(formatted, _NODES, own), strict=True))
            try:
                list(pool.map(EmbeddedTestBroker.start, self._brokers.values()))
            except BaseException:
                self.close()
                raise
        self.bootstrap_servers = ",".join(f"{_ports.HOST}:{port}" for port in own)
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def make_topic(self, name: str, partitions: int) -> None:
        """A topic on all brokers; two of them have each batch before it is answered."""
        new = NewTopic(name, partitions, len(_NODES), config={"min.insync.replicas": "2"})
        self._admin.create_topics([new])[name].result(_TIMEOUT_S)

    def make_topic_of(self, name: str, leader: int, follower: int) -> None:
        """A topic of one partition on two brokers, either of which may go on alone."""
        new = NewTopic(name, 1, replica_assignment=[[leader, follower]])
        self._admin.create_topics([new])[name].result(_TIMEOUT_S)
        self._wait_for_leaders(name, lambda leaders: leaders == {0: leader})

    def make_topic_on(self, name: str, nodes: Sequence[int]) -> None:
        """A topic whose partitions are on one broker each."""
        new = NewTopic(name, len(nodes), replica_assignment=[[node] for node in nodes])
        self._admin.create_topics([new])[name].result(_TIMEOUT_S)
        self._wait_for_leaders(name, lambda found: [*found.values()] == [*nodes])

    def pause(self, node: int) -> None:
        """Make a broker do nothing for a while; after some seconds the controller counts it out."""
        self._brokers[node].pause()

    def resume(self, node: int) -> None:
        """Make it go on."""
        self._brokers[node].resume()

    def let_follower_lead(self, topic: str, leader: int, follower: int) -> None:
        """Kill a leader, let its paused follower go on until it leads, and start the other again.

        Raises:
            TimeoutError: It does not lead.
        """
        self._brokers[leader].kill()
        self._brokers[follower].resume()
        self._brokers[leader].start()
        self._wait_for_leaders(topic, lambda leaders: leaders[0] in (leader, follower))

    def leaders(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        return {partition: data.leader for partition, data in found.items()}

    def move_leaders(self, topic: str, node: int) -> None:
        """End a broker in order until others lead what it led, and start it until it leads again.

        Raises:
            ValueError: It led nothing.
            TimeoutError: Its partitions did not move, or did not move back.
        """
        before = self.leaders(topic)
        if node not in before.values():
            raise ValueError(f"broker {node} leads nothing of {topic}: {before}")
        self._brokers[node].stop()
        others = {other for other in _NODES if other != node}
        self._wait_for_leaders(topic, lambda leaders: set(leaders.values()) <= others)
        self._brokers[node].start()
        self._wait_for_leaders(topic, lambda leaders: leaders == before)

    def _wait_for_leaders(self, topic: str, holds: Callable[[dict[int, int]], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not holds(leaders := self.leaders(topic)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {_TIMEOUT_S} s; the leaders are {leaders}")
            time.sleep(POLL_S)

    def close(self) -> None:
        for node in reversed(_NODES):
            self._brokers[node].kill()


def _options(node: int, port: int, controller: int) -> dict[str, str]:
    client = f"PLAINTEXT://{_ports.HOST}:{port}"
    is_controller = node == _NODES[0]
    listeners = f"{client},CONTROLLER://{_ports.HOST}:{controller}" if is_controller else client
    return {
        "node.id": str(node),
        "process.roles": "broker,controller" if is_controller else "broker",
        "listeners": listeners,
        "advertised.listeners": client,
        "controller.quorum.voters": f"{_NODES[0]}@{_ports.HOST}:{controller}",
        "leader.imbalance.check.interval.seconds": "1",
        "leader.imbalance.per.broker.percentage": "0",
        "broker.rack": f"rack-{node}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }


def _format(folder: Path, cluster_id: str, options: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    properties = folder / "format.properties"
    given = {**options, "log.dirs": str(folder / "data"), "controller.listener.names": "CONTROLLER"}
    properties.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    class_path = os.pathsep.join(map(str, locked_jars("broker")))
    java = find_java().program
    command: list[str | Path] = [java, "-Xmx128m", "-XX:TieredStopAtLevel=1"]
    command += ClassArchive.of("broker", java, class_path, folder).use()
    command += ["-cp", class_path, "kafka.tools.StorageTool", "format"]
    command += [f"--cluster-id={cluster_id}", "--config", properties]
    subprocess.run(command, check=True, capture_output=True, timeout=2 * _TIMEOUT_S)

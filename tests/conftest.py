"""Fixtures for all tests: a broker for the session, and topics of one's own on it.

`--broker=embedded` (the default) or `--broker=container` says where Kafka runs. It is the same
Kafka: in a container run what goes through Docker, its ways to start, pause, stop and kill a broker
(marked `container` or `either_broker`). ``KAFKA_BOOTSTRAP_SERVERS`` names a broker that is already
there: it is used, and no other is started.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import uuid
from typing import TYPE_CHECKING, Protocol

import pytest
import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import HealthCheck, settings

from tests.support.brokers import POLL_S, Broker, EmbeddedTestBroker, ForeignBroker
from tests.support.postgres import PostgresServer
from tests.support.promised import Promised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_TOPIC_TIMEOUT_S = 30.0
# A loaded machine is no failure.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# For a quick look: `make test-fast`. Tests whose examples are cheap or dear say so by `examples`.
settings.register_profile("fast", settings.get_profile("any machine"), max_examples=25)
settings.load_profile("any machine")
_A_DAY_MS = "86400000"
# Some tests set the clock of their job to a day long past, and its records have their time from it:
# the broker's look for what is older than the topic's retention would delete them.
_NO_RETENTION = {
    "log.initial.task.delay.ms": _A_DAY_MS,
    "log.retention.check.interval.ms": _A_DAY_MS,
}


# A transaction that a killed process left open ends at its own timeout, and not up to ten seconds
# later: readers of committed records wait for that.
_PROMPT_ABORTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the user choose where Kafka runs."""
    parser.addoption(
        "--broker",
        choices=("embedded", "container"),
        default=os.environ.get("SEQUITUR_TEST_BROKER", "embedded"),
        help="where Kafka runs for the tests that need it",
    )
    parser.addoption(
        "--promises",
        action="store_true",
        help="fail if all tests of a promise were skipped; for runs of all tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the programs that tests start, where this one is told to ignore it.

    A shell without job control starts what goes to the background so, and a child inherits it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's would reach all that tests start
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--promises"):
        config.pluginmanager.register(Promised(), "promised")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each test where it says something new; the slow ones first, of these those that kill.

    So no process is left alone with a long one when the others have run out of tests.
    """
    items.sort(key=_place)
    if config.getoption("--broker") != "container":
        for item in items:
            if item.get_closest_marker("container"):
                item.add_marker(pytest.mark.skip("needs --broker=container: make test-containers"))
        return
    # The others would run just as they do without a container.
    kept = [item for item in items if _in_container(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _in_container(item)])
    items[:] = kept


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what lives to the end: all that was collected."""
    gc.collect()
    gc.freeze()


def _place(item: pytest.Item) -> tuple[bool, ...]:
    """Return what items are sorted by: the longest first."""
    return tuple(item.get_closest_marker(name) is None for name in ("slow", "kill", "spark"))


def _in_container(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("container", "either_broker"))


@pytest.fixture(autouse=True)
def _logging_as_programs_find_it() -> Iterator[None]:
    """Structlog's `capture_logs` leaves it configured, and a library logs by whether it is."""
    yield
    structlog.reset_defaults()


class MakeBroker(Protocol):
    """Starts a broker for one test."""

    def __call__(self, options: Mapping[str, str] | None = None) -> Broker:
        """Start one with these server properties besides the usual ones."""


class MakeTopic(Protocol):
    """Makes topics for one test."""

    def __call__(self, partitions: int = 4, **config: object) -> str:
        """Make a topic and return its name; ``retention_ms=1`` sets ``retention.ms``."""


@pytest.fixture(scope="session")
def _new_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Mapping[str, str]], Broker]:
    def new(options: Mapping[str, str]) -> Broker:
        if request.config.getoption("--broker") == "container":
            from tests.containers.kafka_container import (  # noqa: PLC0415 - needs Docker's client
                ContainerBroker,
            )

            return ContainerBroker(options)
        return EmbeddedTestBroker(tmp_path_factory.mktemp("broker"), options=options)

    return new


@pytest.fixture(scope="session")
def broker(_new_broker: Callable[[Mapping[str, str]], Broker]) -> Iterator[Broker]:
    """The broker that the session's tests share; who stops or pauses it starts it again."""
    foreign = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    shared = ForeignBroker(foreign) if foreign else _new_broker(_NO_RETENTION | _PROMPT_ABORTS)
    shared.start()
    yield shared
    shared.close()


@pytest.fixture
def make_broker(_new_broker: Callable[[Mapping[str, str]], Broker]) -> Iterator[MakeBroker]:
    """Brokers for this test alone, with server properties of its own."""
    with contextlib.ExitStack() as made:

        def make(options: Mapping[str, str] | None = None) -> Broker:
            if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
                pytest.skip("needs a broker of its own, and KAFKA_BOOTSTRAP_SERVERS names one")
            own = _new_broker(options or {})
            made.callback(own.close)
            own.start()
            return own

        yield make


@pytest.fixture
def make_topic(broker: Broker, request: pytest.FixtureRequest) -> Iterator[MakeTopic]:
    """Topics for this test alone, on the shared broker; they are ready when they are returned."""
    # A test that failed with the broker down or paused must not take the following ones along.
    broker.start()
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    made: list[str] = []
    stem = "".join(c if c.isalnum() else "-" for c in request.node.name)[:60].strip("-")

    def make(partitions: int = 4, **config: object) -> str:
        name = f"{stem}-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        client.create_topics([new])[name].result(_TOPIC_TIMEOUT_S)
        made.append(name)
        _wait_for_leaders(client, name, partitions)
        return name

    yield make
    if made:
        for deletion in client.delete_topics(made, operation_timeout=1.0).values():
            # The test may have left the broker down, and its topics go with it anyway.
            with contextlib.suppress(KafkaException):
                deletion.result(_TOPIC_TIMEOUT_S)


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL that the session's tests share: none of them stops it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def make_postgres() -> Iterator[Callable[[], PostgresServer]]:
    """Servers for this test alone, which it may kill."""
    with contextlib.ExitStack() as made:
        yield lambda: made.enter_context(PostgresServer())


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres.sql(f"CREATE DATABASE {name}")
    return postgres.url(name)


def _wait_for_leaders(client: AdminClient, name: str, partitions: int) -> None:
    deadline = time.monotonic() + _TOPIC_TIMEOUT_S
    while time.monotonic() < deadline:
        found = client.list_topics(name, timeout=_TOPIC_TIMEOUT_S).topics[name].partitions
        if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
            return
        time.sleep(POLL_S)
    raise TimeoutError(f"topic {name} has no leaders after {_TOPIC_TIMEOUT_S:g} s")

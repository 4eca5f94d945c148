"""Fixtures for all tests: one broker for all processes of a session, and topics of one's own on it.

What is one for an installation (the topics of subscriptions, the group that checks them) has a
prefix of the test's own: the fixtures `kafka` and `system_prefix`. Who stops, pauses or fills the
broker, or keeps all others from running retention on it, is marked `own_broker`: it has that of its
own process, and such tests run one after the other.

`--broker=embedded` (the default) or `--broker=container` says where Kafka runs. It is the same
Kafka: in a container run what goes through Docker, its ways to start, pause, stop and kill a broker
(marked `container` or `either_broker`). ``KAFKA_BOOTSTRAP_SERVERS`` names a broker that is already
there: it is used, and no other is started.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import os
import shutil
import signal
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import HealthCheck, settings

from sequitur.kafka.settings import KafkaSettings
from tests.support.brokers import (
    POLL_S,
    Broker,
    EmbeddedTestBroker,
    ForeignBroker,
    SharedBroker,
)
from tests.support.lanes import LANES, lane_of
from tests.support.postgres import PostgresServer
from tests.support.promised import Promised
from tests.support.scheduling import IN_SESSION, SESSION_FOLDER, Groups, write_groups
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xdist.remote import Producer  # type: ignore[import-untyped]

_FOLDER = Path(__file__).parent
_TOPIC_TIMEOUT_S = PATIENCE_S
_SHARED: list[Broker] = []
"""Kept to this process's end: Python warns of a child that goes on when its object is gone."""
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
    parser.addoption("--lane", choices=LANES, help="run only the tests of one product")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no test file of another lane than the one that is asked for."""
    lane = config.getoption("--lane")
    if lane is None or not collection_path.match("test_*.py"):
        return None
    return lane_of(collection_path.relative_to(_FOLDER).as_posix()) != lane or None


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the programs that tests start, where this one is told to ignore it.

    A shell without job control starts what goes to the background so, and a child inherits it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's would reach all that tests start
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--promises"):
        config.pluginmanager.register(Promised(), "promised")
    if not _is_worker(config):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the shared broker ends, too
        os.environ[SESSION_FOLDER] = tempfile.mkdtemp(prefix="sequitur-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the shared broker where all processes have ended, however they did."""
    if not _is_worker(config):
        folder = Path(os.environ.pop(SESSION_FOLDER))
        EmbeddedTestBroker(folder / "broker").stop()
        shutil.rmtree(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups | None:
    """Keep the tests of a group in one process; see `_group`."""
    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each test where it says something new; the slow ones first, of these those that kill.

    So no process is left alone with a long one when the others have run out of tests.
    """
    items.sort(key=_place)
    if _is_worker(config):
        write_groups(_group(items))
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


def _group(items: list[pytest.Item]) -> dict[str, str]:
    """Name a group for each test that goes to one process with others; the rest goes anywhere.

    A file that needs Spark's session is one; a broker to disturb and what is made once for a file
    are in one process.
    """
    in_session = {item.path for item in items if "shared_session" in _fixtures(item)}
    groups = {}
    for item in items:
        if item.path in in_session:
            name = f"{IN_SESSION}{item.path.name}"
        elif item.get_closest_marker("own_broker"):
            name = "own broker"
        elif item.get_closest_marker("one_process"):
            name = item.path.name
        else:
            continue
        groups[item.nodeid] = name
    return groups


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


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
def _own_broker(_new_broker: Callable[[Mapping[str, str]], Broker]) -> Iterator[Broker]:
    own = _new_broker(_NO_RETENTION | _PROMPT_ABORTS)
    yield own
    own.close()


@pytest.fixture(scope="session")
def _shared_broker(request: pytest.FixtureRequest) -> Broker:
    """The first process to need it starts it; `pytest_unconfigure` ends it."""
    if request.config.getoption("--broker") == "container":
        own: Broker = request.getfixturevalue("_own_broker")
        return own
    folder = Path(os.environ[SESSION_FOLDER], "broker")
    _SHARED.append(EmbeddedTestBroker(folder, options=_NO_RETENTION | _PROMPT_ABORTS))
    return SharedBroker(_SHARED[0].start())


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Broker:
    """The broker that all tests share; for one marked `own_broker` that of its process."""
    foreign = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if foreign:
        return ForeignBroker(foreign)
    own = request.node.get_closest_marker("own_broker")
    found: Broker = request.getfixturevalue("_own_broker" if own else "_shared_broker")
    # A test that failed with the broker down or paused must not take the following ones along.
    found.start()
    return found


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


@pytest.fixture(scope="session")
def _admins() -> Iterator[Callable[..., AdminClient]]:
    """One client a process and broker, and a new one when a test has started its broker anew.

    Else a client may wait a minute for the controller of a broker that was killed.
    """

    @functools.cache
    def admin(servers: str, broker_pid: int | None = None) -> AdminClient:
        del broker_pid  # it is there for the cache
        # A test that restarts its broker must not let the next one wait for a connection.
        backoff = {"reconnect.backoff.max.ms": 200}
        return AdminClient({"bootstrap.servers": servers, "log_level": 0, **backoff})

    yield admin
    admin.cache_clear()  # while there is an interpreter for their threads


@pytest.fixture(scope="module")
def _made_topics(_admins: Callable[..., AdminClient]) -> Iterator[dict[str, list[str]]]:
    """The topics of a file, by the broker: they go together, and nobody waits for that.

    With none deleted, thousands would be in each pattern and each survey. A broker that a test left
    down takes its topics along.
    """
    made: dict[str, list[str]] = {}
    yield made
    for servers, names in made.items():
        if not names:  # nothing was made, or the making failed
            continue
        deletions = _admins(servers).delete_topics(names)
        if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):  # it outlives this process
            concurrent.futures.wait(deletions.values(), _TOPIC_TIMEOUT_S)


@pytest.fixture
def make_topic(
    broker: Broker,
    request: pytest.FixtureRequest,
    _admins: Callable[..., AdminClient],
    _made_topics: dict[str, list[str]],
) -> MakeTopic:
    """Topics for this test alone, on the shared broker; they are ready when they are returned."""
    pid = broker.status().pid if isinstance(broker, EmbeddedTestBroker) else None
    client = _admins(broker.bootstrap_servers, pid)
    made = _made_topics.setdefault(broker.bootstrap_servers, [])
    stem = "".join(c if c.isalnum() else "-" for c in request.node.name)[:60].strip("-")

    def make(partitions: int = 4, **config: object) -> str:
        name = f"{stem}-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        client.create_topics([new])[name].result(_TOPIC_TIMEOUT_S)
        made.append(name)
        _wait_for_leaders(client, name, partitions)
        return name

    return make


@pytest.fixture
def make_system_prefix(
    broker: Broker, _admins: Callable[..., AdminClient]
) -> Iterator[Callable[[], str]]:
    """Prefixes for registries, cursors, quotas and checks of this test alone."""
    made: list[str] = []

    def make() -> str:
        made.append(f"t{uuid.uuid4().hex[:10]}")
        return made[-1]

    yield make
    client = _admins(broker.bootstrap_servers)
    topics = [f"{one}-{kind}" for one in made for kind in ("subscriptions", "cursors")]
    # The test may have left the broker down. What is deleted is not waited for.
    with contextlib.suppress(KafkaException):
        found = client.list_consumer_groups(request_timeout=_TOPIC_TIMEOUT_S).result().valid
        groups = [one.group_id for one in found if one.group_id.split("-")[0] in made]
        client.delete_topics(topics)
        if groups:
            client.delete_consumer_groups(groups)


@pytest.fixture
def system_prefix(make_system_prefix: Callable[[], str]) -> str:
    return make_system_prefix()


@pytest.fixture
def kafka(broker: Broker, system_prefix: str) -> KafkaSettings:
    """The broker, for a test that has subscriptions or quotas."""
    return KafkaSettings(bootstrap_servers=broker.bootstrap_servers, system_prefix=system_prefix)


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

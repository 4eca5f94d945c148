"""What brokers say of topics, where some or all do not answer."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataResponse_v1
from confluent_kafka import KafkaError, KafkaException

from sequitur.base.retry import Outages
from sequitur.errors import FatalError, RetriableError, TopicError, UnansweredError
from sequitur.kafka import admin as kafka_topics
from sequitur.kafka import connections, metadata
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.metadata import NEEDED_VERSIONS, ClusterClient
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.shared_admin import SharedAdmin
from sequitur.producer import KafkaSettings
from tests.support.fake_cluster import FakeCluster, FakeWire
from tests.support.partition_model import PartitionModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _impatient() -> Outages:
    return Outages(0, 0, wait=lambda _: False)


def _topics(admin: Any, outages: Outages) -> KafkaTopics:
    return KafkaTopics(KafkaSettings(bootstrap_servers="127.0.0.1:1"), outages, admin)


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (
            lambda topics: topics.high_watermarks([SourcePartition("t", 0)]),
            "do not list the topics' offsets: no answer in 0.01 s",
        ),
        (
            lambda topics: topics.ensure("t", partitions=1, replication_factor=1),
            "topic 't' cannot be created: no answer in 0.01 s",
        ),
    ],
)
def test_no_answer_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[KafkaTopics], Any], complaint: str
) -> None:
    """Our patience may end before the client's own: then there is no error of Kafka's to tell."""
    monkeypatch.setattr(kafka_topics, "_TIMEOUT_S", 0.01)
    silent: Future[Any] = Future()
    admin = SimpleNamespace(
        list_offsets=lambda wanted, **_: dict.fromkeys(wanted, silent),
        list_topics=lambda **_: SimpleNamespace(topics={}),
        create_topics=lambda _topics, **_: {"t": silent},
    )
    topics = _topics(admin, _impatient())
    with pytest.raises(TopicError, match=complaint):
        ask(topics)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_topic_that_was_just_created_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    """Another broker may answer that it is not there, also where another client has created it."""
    monkeypatch.setattr(kafka_topics, "_LOOK_S", 0)
    created: Future[None] = Future()
    if is_ours:
        created.set_result(None)
    else:
        created.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
    led = SimpleNamespace(leader=1)
    found = SimpleNamespace(partitions={0: led, 1: led}, error=None)
    answers = [{}, {}, {"t": found}]
    admin = SimpleNamespace(
        list_topics=lambda **_: SimpleNamespace(topics=answers.pop(0)),
        create_topics=lambda _topics, **_: {"t": created},
    )
    topics = _topics(admin, _impatient())
    assert topics.ensure("t", partitions=2, replication_factor=1) == 2
    assert not answers


@pytest.mark.promise("order-broker-hangs")
@pytest.mark.parametrize(
    "ask",
    [
        lambda topics: topics.partitions("t"),
        lambda topics: topics.high_watermarks([SourcePartition("t", 0)]),
    ],
)
def test_whoever_is_to_stop_waits_for_no_broker_that_hangs(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[KafkaTopics], Any]
) -> None:
    """Whether the client's call itself hangs, or the answer that it has promised."""
    stop, is_over = threading.Event(), threading.Event()
    silent: Future[Any] = Future()

    def hang(**_options: Any) -> None:
        if not stop.is_set():
            stop.set()
            is_over.wait()

    def promise(wanted: Any, **_options: Any) -> dict[Any, Any]:
        stop.set()
        return dict.fromkeys(wanted, silent)

    monkeypatch.setattr(kafka_topics, "_TIMEOUT_S", 3_600.0)
    monkeypatch.setattr(kafka_topics, "_STOPPING_S", 0.1)
    admin = SimpleNamespace(list_topics=hang, list_offsets=promise)
    topics = _topics(admin, Outages(3_600, 0, wait=stop.wait, tell=len))
    with pytest.raises(UnansweredError):
        ask(topics)
    is_over.set()
    silent.cancel()


@pytest.mark.promise("order-broker-hangs")
def test_a_cluster_that_names_no_broker_is_asked_again() -> None:
    """As one whose only broker hung for a minute, and answers before it has joined again."""
    answers: list[dict[int, Any]] = [{}, {}, {1: None}]
    patient = Outages(60, 0, wait=lambda _: False, tell=len)
    config: Future[Any] = Future()
    config.set_result({"producer.id.expiration.ms": SimpleNamespace(value="7")})
    admin = SimpleNamespace(
        list_topics=lambda **_: SimpleNamespace(brokers=answers.pop(0)),
        describe_configs=lambda wanted, **_: dict.fromkeys(wanted, config),
    )
    assert _topics(admin, patient).producer_expiry_ms() == 7


class _Held:
    """What a job has at hand while it asks."""


def test_what_asked_in_vain_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real client: its calls that raise keep the error that is handled meanwhile."""
    monkeypatch.setattr(kafka_topics, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(kafka_topics, "_LEARNS_IN_S", 0.1)
    real, learned = SharedAdmin(KafkaSettings(bootstrap_servers="127.0.0.1:1")), []

    def learn_in_vain(**options: Any) -> Any:
        learned.append(True)
        return real.list_topics(**options)

    admin = SimpleNamespace(list_offsets=real.list_offsets, list_topics=learn_in_vain)
    topics = _topics(admin, _impatient())

    def ask() -> weakref.ref[_Held]:
        held = _Held()
        with pytest.raises(UnansweredError):
            topics.high_watermarks([SourcePartition("t", 0)])
        return weakref.ref(held)

    held = ask()
    gc.collect()
    assert held() is None
    assert learned == [True]  # once, and not again for an error that is told


@pytest.mark.promise("order-kafka-away-minutes")
@pytest.mark.parametrize(
    "code",
    [
        KafkaError._NOENT,
        KafkaError._TRANSPORT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    ],
)
def test_partitions_without_a_leader_are_waited_for(code: int) -> None:
    """As long as patience goes; also where our client finds no leader to ask at all."""
    where = SourcePartition("t", 0)
    answers: list[Future[Any]] = [Future(), Future()]
    answers[0].set_exception(KafkaException(KafkaError(code)))
    answers[1].set_result(SimpleNamespace(offset=7))
    patient = Outages(60, 0, wait=lambda _: False, tell=len)
    admin = SimpleNamespace(
        list_offsets=lambda wanted, **_: dict.fromkeys(wanted, answers.pop(0)),
        list_topics=lambda **_: SimpleNamespace(topics={}),
    )
    topics = _topics(admin, patient)
    assert topics.high_watermarks([where]) == {where: 7}


class _Hanging(FakeWire):
    """Some nodes take requests, and answer none in time."""

    silent: set[int]

    async def ask(self, node: int, request: Any) -> Any:
        if node in self.silent:
            raise RetriableError("no answer")
        return await super().ask(node, request)


async def _tell_nothing(_topics: Any) -> bool:
    return False


@pytest.mark.promise("order-broker-hangs")
@pytest.mark.parametrize("is_known", [True, False], ids=["hangs", "leaderless"])
def test_who_asks_for_some_waits_for_no_leader_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """Also if no broker tells who leads."""
    cluster = FakeCluster(clock=lambda: 0.0)
    models = [PartitionModel(leader=number) for number in range(2)]
    wanted = [SourcePartition("t", number) for number in range(2)]
    cluster.partitions = {
        OutputPartition(*where): one for where, one in zip(wanted, models, strict=True)
    }
    wire = _Hanging(cluster)
    wire.silent = {0} if is_known else set()
    if not is_known:
        monkeypatch.setattr(wire, "leader", lambda _topic, number: number or None)
    monkeypatch.setattr(connections, "Wire", lambda *_args, **_options: wire)
    monkeypatch.setattr(connections, "_kept", {})
    topics = _topics(None, _impatient())
    assert topics.high_watermarks(wanted, of_some=True) == {wanted[1]: 0}
    with monkeypatch.context() as nobody:
        nobody.setattr(wire, "refresh", _tell_nothing)
        assert topics.high_watermarks(wanted, of_some=True) == {wanted[1]: 0}
    wire.silent = {0, 1}
    with pytest.raises(UnansweredError, match="do not list the topics' offsets: no answer"):
        topics.high_watermarks(wanted, of_some=True)
    wire.silent = set()
    monkeypatch.setattr(wire, "leader", lambda _topic, number: number)
    assert topics.high_watermarks(wanted, of_some=True) == dict.fromkeys(wanted, 0)
    connections.close_own()


class _Connection:
    """A broker's answers by a connection. A broker that hangs takes requests all the same."""

    def __init__(self, hang: Callable[[], object] | None) -> None:
        self._hang = hang
        self._versions = {key: (0, needed) for key, (_, needed) in NEEDED_VERSIONS.items()}

    def connected(self) -> bool:
        return True

    async def close(self, **_how: Any) -> None:
        pass

    async def send(self, request: Any, **_how: Any) -> Any:
        if self._hang is not None:
            self._hang()
            await asyncio.sleep(3_600)
        if isinstance(request, DescribeConfigsRequest):
            return SimpleNamespace(resources=[(0, None, 2, "t", [("max.message.bytes", "2000")])])
        partition: Any = (0, 0, 2, 0, [2], [2], [], {})
        return SimpleNamespace(
            brokers=[(node, "127.0.0.1", node, None, {}) for node in (1, 2)],
            cluster_id="c",
            controller_id=1,
            topics=[(0, "t", bytes(15) + b"a", False, [partition], 0, {})],
        )


@pytest.fixture
def two_brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Callable[[], object]]]:
    """Those that hang of brokers 1 and 2, and what each does as it is asked. 1 is asked first."""
    hanging: dict[int, Callable[[], object]] = {}

    async def bootstrap(client: ClusterClient) -> None:
        brokers = [(node, "127.0.0.1", node, None) for node in (1, 2)]
        client.cluster.update_metadata(MetadataResponse_v1(brokers, 1, []))
        client._sync_task = asyncio.create_task(client._md_synchronizer())

    async def connect(_host: str, port: int, **_how: Any) -> _Connection:
        return _Connection(hanging.get(port))

    monkeypatch.setattr(metadata, "_MAY_HANG_S", 0.01)
    monkeypatch.setattr(ClusterClient, "bootstrap", bootstrap)
    monkeypatch.setattr(ClusterClient, "nodes", lambda _: [1, 2])
    monkeypatch.setattr("aiokafka.client.create_conn", connect)
    monkeypatch.setattr(connections, "_kept", {})
    yield hanging
    connections.close_own()


_OF_A_JOB: Final[list[tuple[Callable[[KafkaTopics], Any], Any]]] = [
    (lambda topics: topics.counts(["t", "u"]), {"t": 1}),
    (lambda topics: topics.ids(["t", "u"]), {"t": "AAAAAAAAAAAAAAAAAAAAYQ"}),
    (lambda topics: topics.matching("t.*", lambda one: one == "t", ()), {"t": 1}),
    (lambda topics: topics.record_limit("t").max_bytes, 2_000),
]
"""What a job asks each second, and the answer."""


@pytest.mark.promise("order-broker-hangs")
@pytest.mark.parametrize(("ask", "answer"), _OF_A_JOB)
def test_who_asks_by_its_own_connections_waits_for_no_broker_that_hangs(
    two_brokers: dict[int, Callable[[], object]], ask: Callable[[KafkaTopics], Any], answer: Any
) -> None:
    """The next one is asked beside it; librdkafka's client is not asked at all."""
    two_brokers[1] = bool
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    nobody: Any = None
    assert ask(KafkaTopics(kafka, _impatient(), nobody, by_thread=True)) == answer


@pytest.mark.promise("order-broker-hangs")
@pytest.mark.parametrize("ask", [ask for ask, _ in _OF_A_JOB])
def test_who_asks_by_its_own_connections_does_not_wait_once_it_is_to_stop(
    monkeypatch: pytest.MonkeyPatch,
    two_brokers: dict[int, Callable[[], object]],
    ask: Callable[[KafkaTopics], Any],
) -> None:
    """Where all brokers hang."""
    monkeypatch.setattr(connections, "_STOPPING_S", 0.1)
    stop = threading.Event()
    two_brokers |= {1: stop.set, 2: stop.set}
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    outages = Outages(3_600, 0, wait=stop.wait, tell=len)
    with pytest.raises(UnansweredError):
        ask(KafkaTopics(kafka, outages, by_thread=True))


@pytest.mark.promise("in-cluster-controller-moves")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.NOT_CONTROLLER, RetriableError),
        (KafkaError.REQUEST_TIMED_OUT, RetriableError),
        (KafkaError._TRANSPORT, RetriableError),
        (KafkaError.INVALID_REPLICATION_FACTOR, FatalError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, FatalError),
    ],
)
async def test_a_topic_is_asked_for_again_if_what_hinders_it_passes(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    """A daemon that begins while the controller moves is not ended by that."""
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(code)))
    admin = SimpleNamespace(create_topics=lambda _topics, **_: {"t": answer})
    monkeypatch.setattr(kafka_topics, "AdminClient", lambda _: admin)
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(error, match="topic t could not be created"):
        await kafka_topics.create_topic(kafka, "t", partitions=1, replication_factor=3)


async def test_a_topic_that_is_there_is_not_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who create it at once both have it."""
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
    admin = SimpleNamespace(create_topics=lambda _topics, **_: {"t": answer})
    monkeypatch.setattr(kafka_topics, "AdminClient", lambda _: admin)
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    assert not await kafka_topics.create_topic(kafka, "t", partitions=1, replication_factor=1)


class _Admin:
    """A cluster of topics whose partitions have a leader each, or none, and end at 10."""

    def __init__(self, **led: list[bool]) -> None:
        self.led = led
        self.asked: list[dict[tuple[str, int], int]] = []
        self.deleted_meanwhile: str | None = None

    def list_topics(self, **_: Any) -> Any:
        def topic(leaders: list[bool]) -> Any:
            found = {n: SimpleNamespace(leader=led - 1) for n, led in enumerate(leaders)}
            return SimpleNamespace(partitions=found, error=None)

        return SimpleNamespace(topics={name: topic(led) for name, led in self.led.items()})

    def list_offsets(self, wanted: Any, **_: Any) -> dict[Any, Future[Any]]:
        self.led.pop(self.deleted_meanwhile or "", None)
        self.asked.append({(one.topic, one.partition): at._value for one, at in wanted.items()})
        answers = {}
        for one, at in wanted.items():
            answers[one] = Future[Any]()
            if one.topic == self.deleted_meanwhile:
                error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                answers[one].set_exception(KafkaException(error))
            else:
                offset = {-1: 10, -2: 3, 500: 7, 600: 12, 900: -1}[at._value]
                answers[one].set_result(SimpleNamespace(offset=offset))
        self.deleted_meanwhile = None
        return answers


@pytest.fixture
def cluster() -> tuple[KafkaTopics, _Admin]:
    """Topics `a` and `b`; the second partition of `a` has no leader."""
    admin = _Admin(a=[True, False], b=[True])
    patient = Outages(60, 0, wait=lambda _: False, tell=len)
    return _topics(admin, patient), admin


def test_each_leader_is_asked_once_for_all_its_partitions(
    cluster: tuple[KafkaTopics, _Admin],
) -> None:
    """And once more for each further time of a topic; never for what has no leader."""
    topics, admin = cluster
    found = topics.extents(["a", "b", "gone"], {"a": [500], "b": [600, 500, 900]})
    a, b = SourcePartition("a", 0), SourcePartition("b", 0)
    assert found.logs == {a: (3, 10), b: (3, 10)}
    assert found.leaderless == {SourcePartition("a", 1)}
    # Where there is no such message, or it was written since, it is the end.
    assert found.since == {(a, 500): 7, (b, 500): 7, (b, 600): 10, (b, 900): 10}
    assert admin.asked == [{a: -2, b: -2}, {a: -1, b: -1}, {a: 500, b: 500}, {b: 600}, {b: 900}]


def test_a_topic_that_is_deleted_meanwhile_is_left_out(
    cluster: tuple[KafkaTopics, _Admin],
) -> None:
    """It holds up nobody who asks for all topics."""
    topics, admin = cluster
    admin.deleted_meanwhile = "a"
    found = topics.extents(["a", "b"])
    assert (set(found.logs), found.leaderless) == ({SourcePartition("b", 0)}, frozenset())


@pytest.mark.promise("order-row-larger-output")
def test_limit_that_is_raised_is_noticed_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are quarantined by it; what topics delete by themselves is asked for once a minute."""
    config = {"max.message.bytes": "2000", "retention.ms": "-1"}
    asked = []

    def describe(wanted: list[Any], **_: object) -> dict[Any, Future[Any]]:
        asked.append([one.name for one in wanted])
        answer: Future[Any] = Future()
        answer.set_result({name: SimpleNamespace(value=value) for name, value in config.items()})
        return dict.fromkeys(wanted, answer)

    now_s = 1_000.0
    topics = _topics(SimpleNamespace(describe_configs=describe), _impatient())
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    limits = [topics.record_limit("t").max_bytes for _ in range(2)]
    config["max.message.bytes"] = "9000"
    now_s += 1
    limits += [topics.record_limit("t").max_bytes for _ in range(2)]
    now_s += 30
    topics.known_retentions(["t"])
    assert limits == [2000, 2000, 9000, 9000]
    assert asked == [["t"]] * 2


@pytest.mark.promise("order-output-topic-deleted")
def test_a_topic_that_was_deleted_under_who_writes_to_it_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other errors stay what they are."""
    code = KafkaError.UNKNOWN_TOPIC_OR_PART

    def describe(wanted: list[Any], **_: object) -> dict[Any, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(code)))
        return dict.fromkeys(wanted, answer)

    monkeypatch.setattr(kafka_topics, "_TIMEOUT_S", 0.0)  # it is not waited for here
    topics = _topics(SimpleNamespace(describe_configs=describe), _impatient())
    with pytest.raises(TopicError, match=r"'t' does not exist: was it deleted.* start over with"):
        topics.record_limit("t")
    code = KafkaError.INVALID_REQUEST
    with pytest.raises(TopicError, match="the settings of topic 't' cannot be read"):
        topics.record_limit("t")


def test_compacted_topics_are_found_also_where_their_settings_may_not_be_read() -> None:
    """One that is deleted meanwhile may be among them."""
    told: dict[str, str | int] = {
        "of_a": "compact",
        "of_b": "compact,delete",
        "of_c": "delete",
        "of_d": KafkaError.TOPIC_AUTHORIZATION_FAILED,
        "of_e": KafkaError.UNKNOWN_TOPIC_OR_PART,
    }

    def describe(wanted: Any, **_: Any) -> dict[Any, Future[Any]]:
        answers = {one: Future[Any]() for one in wanted}
        for one, answer in answers.items():
            policy = told[one.name]
            if isinstance(policy, str):
                answer.set_result({"cleanup.policy": SimpleNamespace(value=policy)})
            else:
                answer.set_exception(KafkaException(KafkaError(policy)))
        return answers

    admin = SimpleNamespace(
        list_topics=_Admin(another=[True], **{name: [True] for name in told}).list_topics,
        describe_configs=describe,
    )
    topics = _topics(admin, _impatient())
    found = topics.compacted(lambda name: name.startswith("of_"))
    assert found == ["of_a", "of_b", "of_d", "of_e"]

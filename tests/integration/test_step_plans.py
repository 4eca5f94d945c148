"""The plans of steps on a real broker: what is in a job's output that should not be is refused."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from sequitur.errors import (
    CheckpointError,
    LostRowsError,
    OutputMismatchError,
    OwnershipError,
    TopicError,
)
from sequitur.kafka import leaders
from sequitur.kafka.admin import KafkaTopics
from sequitur.pipelines.sink.step_planner import StepPlanner
from sequitur.producer import KafkaSettings
from tests.support.brokers import POLL_S
from tests.support.document_folder import DocumentFolder
from tests.support.job_output import JobOutput, Life, expected, laid_out, numbered
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker, MakeTopic
    from tests.support.brokers import Broker

_TIMEOUT_S = PATIENCE_S


@pytest.fixture
def output(broker: Broker, topic: str) -> JobOutput:
    return JobOutput(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic)


def _write(life: Life, step: int, rows: int = 10, *, partition: int = 0) -> None:
    task = life.task(step)
    assert task.write([(partition, laid_out(numbered(rows, of=f"step {step}")))]) == {
        partition: rows
    }
    life.finish(step, {partition: rows})


def _make_anew(kafka: KafkaSettings, topic: str) -> None:
    """Delete a topic, and create another of its name; return once the broker tells of that one."""
    topics = KafkaTopics(kafka)
    known = topics.ids([topic])
    admin = AdminClient(kafka.librdkafka())
    admin.delete_topics([topic])[topic].result(_TIMEOUT_S)
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(_TIMEOUT_S)
    # Until a broker knows it, it answers of the old one.
    while topics.ids([topic]) in ({}, known):
        time.sleep(POLL_S)


def _wait_for_acls(admin: AdminClient, count: int) -> None:
    """Wait until the broker goes by so many rules: it answers a change before it does."""
    anything: Any = None  # as its documentation says, and its types do not
    every = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, anything, anything,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    wait_until(lambda: len(admin.describe_acls(every).result(_TIMEOUT_S)) == count)


def _copy(life: Life) -> Life:
    """A life whose checkpoint is a copy of what another's is now."""
    documents = DocumentFolder(documents=copy.deepcopy(life.documents.documents))
    return Life(life.output, documents, life.plans, life.done)


def test_a_life_goes_on_behind_the_one_before(output: JobOutput) -> None:
    """Each takes the next epoch, and begins at sequence 0 with its first step."""
    life = output.life()
    epochs = []
    for step in range(6):
        if step in {2, 5}:
            life = life.next()
        _write(life, step)
        plan = life.planned(step).plan
        epochs.append(plan.identity.epoch)
        since = step - {0: 0, 1: 0, 5: 5}.get(step, 2)
        assert plan.topics[output.topic].firsts == (10 * since, 0, 0, 0)
        assert plan.topics[output.topic].ends == (10 * step, 0, 0, 0)
    assert epochs == [0, 0, 1, 1, 1, 2]
    assert output.values(0) == [row for step in range(6) for row in expected(10, of=f"step {step}")]


@pytest.mark.promise("order-brokers-lose-rows")
def test_a_partition_that_lost_rows_of_a_done_step_is_refused(output: JobOutput) -> None:
    """As by a disk that was restored: the leader has fewer rows than the done mark says."""
    life = output.life()
    _write(life, 0)
    life.planned(1)
    life.finish(1, {0: 7})  # nothing of it is there
    with pytest.raises(LostRowsError, match=r"acknowledged, in steps that are done \(7 of them\)"):
        life.next()


def test_an_unfinished_step_is_finished_as_it_was_begun(output: JobOutput) -> None:
    """Under the identity and the sequences of its plan, whatever life ends it."""
    life = output.life()
    _write(life, 0)
    planned = life.planned(1).plan
    first_half = laid_out(numbered(40, of="step 1"))
    assert life.task(1).write([(0, first_half)]) == {0: 40}
    life = life.next(newest=1).next(newest=1)
    assert life.planned(1).plan == planned
    _write(life, 1, 60)
    assert life.planned(2).plan.identity.epoch == planned.identity.epoch + 2
    assert output.values(0) == expected(10, of="step 0") + expected(60, of="step 1")


@pytest.mark.promise("order-output-checkpoint-new")
def test_checkpoint_keeps_to_its_app(output: JobOutput) -> None:
    """Another name has another producer id, and rows would double: it is refused."""
    folder = output.life().documents
    other = StepPlanner(output.kafka, app="other", documents=folder)
    with pytest.raises(CheckpointError, match="belongs to a job with app = 'app-"):
        other.open({output.topic: 4}, newest=-1, done=-1, sent=None)
    folder.documents["outputs.json"]["format"] = 2
    with pytest.raises(CheckpointError, match="of format 2, this version reads 1"):
        output.life(folder)


@pytest.mark.promise("order-output-checkpoint-new")
def test_new_checkpoint_under_a_used_name_is_refused(output: JobOutput) -> None:
    """Another checkpoint's rows are there, and the new one would write them again."""
    _write(output.life(), 0)
    for _ in range(2):
        with pytest.raises(OutputMismatchError, match=r"partition 0 of .* holds rows that"):
            output.life()
    assert output.values(0) == expected(10, of="step 0")


@pytest.mark.promise("order-output-checkpoint-new")
@pytest.mark.parametrize("is_another_life", [False, True])
def test_older_copy_of_the_checkpoint_is_refused(
    output: JobOutput, *, is_another_life: bool
) -> None:
    """What has gone out since would go out again."""
    life = output.life()
    _write(life, 0)
    older, sent = _copy(life), life.plans.sent
    newer = life.next() if is_another_life else life
    _write(newer, 1)
    with pytest.raises(OutputMismatchError, match="an older copy"):
        output.life(older.documents, newest=0, done=0, sent=sent)
    newer.next()
    assert len(output.values(0)) == 20


def test_older_copy_within_a_step_is_refused_by_its_tasks(output: JobOutput) -> None:
    """The partition has more rows than the step."""
    life = output.life()
    life.planned(0)
    older = _copy(life)
    for step in range(2):
        _write(life, step)
    again = output.life(older.documents, newest=0)
    with pytest.raises(OutputMismatchError, match="holds 20 rows of the step, and it has 10: is"):
        _write(again, 0)
    assert len(output.values(0)) == 20


@pytest.mark.promise("order-output-checkpoint-new")
def test_copy_within_a_step_is_refused_where_the_step_writes_nothing(output: JobOutput) -> None:
    """Its tasks do not look at the other partitions: they are looked at once it is written."""
    life = output.life()
    _write(life, 0, partition=1)
    sent = life.plans.sent
    life.planned(1)
    older = _copy(life)
    _write(life, 1)
    _write(life.next(), 2, partition=1)
    again = output.life(older.documents, newest=1, done=0, sent=sent)
    with pytest.raises(OutputMismatchError, match=r"partition 1 of .* does not know: is the"):
        _write(again, 1)
    assert (len(output.values(0)), len(output.values(1))) == (10, 20)


@pytest.mark.promise("order-output-checkpoint-new")
@pytest.mark.parametrize(("newest", "done"), [(0, -1), (3, 3)])
def test_copy_of_before_the_first_rows_is_refused(
    output: JobOutput, newest: int, done: int
) -> None:
    """Of a step that had no plan yet, and behind steps that wrote nothing."""
    life = output.life()
    older = _copy(life)
    _write(life, done + 1)
    with pytest.raises(OutputMismatchError, match="an older copy"):
        output.life(older.documents, newest=newest, done=done)
    assert len(output.values(0)) == 10


class _TakenOver(DocumentFolder):
    """Was taken over before the last document was written."""

    def check_owner(self) -> None:
        raise OwnershipError(self.root)


def test_driver_that_slept_over_many_steps_follows_no_plan_of_its_own(output: JobOutput) -> None:
    """The plan that it finds missing may have been there: plans of old steps are deleted."""
    documents = output.life().documents.documents
    slept = output.life(_TakenOver(documents=documents))
    for _ in range(2):
        with pytest.raises(OwnershipError):
            slept.planned(0)
        del documents["plans/000000000000"]


@pytest.mark.promise("order-input-topic-deleted", "order-output-checkpoint-new")
def test_topic_that_was_made_anew_is_refused(broker: Broker, make_topic: MakeTopic) -> None:
    """What it held is gone: at the start, and between two steps."""
    output = JobOutput(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), make_topic())
    life = output.life()
    _write(life, 0)
    _make_anew(output.kafka, output.topic)
    with pytest.raises(OutputMismatchError, match="was deleted and recreated"):
        life.planned(1)
    with pytest.raises(OutputMismatchError, match="was deleted and recreated"):
        life.next()


def test_topic_made_anew_is_refused_whoever_wrote_it_last(
    broker: Broker, make_topic: MakeTopic
) -> None:
    """The life before may have written to another topic only."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topics = {make_topic(): 4, make_topic(): 4}
    folder, sent = DocumentFolder(), None
    for step, topic in enumerate(topics):
        plans = StepPlanner(kafka, app=min(topics), documents=folder)
        plans.open(topics, newest=step - 1, done=step - 1, sent=sent)
        plans.of_step(step, {topic: 4})
        plans.written(step, {})
        sent = plans.sent
    _make_anew(kafka, next(iter(topics)))
    plans = StepPlanner(kafka, app=min(topics), documents=folder)
    with pytest.raises(OutputMismatchError, match="was deleted and recreated"):
        plans.open(topics, newest=1, done=1, sent=sent)


@pytest.mark.promise("order-output-topic-deleted")
def test_topic_that_is_deleted_while_the_job_runs_is_not_waited_for(
    output: JobOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not come back as what it was."""
    monkeypatch.setattr(leaders, "_DELETED_AFTER_S", 1.0)
    life = output.life()
    _write(life, 0)
    admin = AdminClient(output.kafka.librdkafka())
    admin.delete_topics([output.topic])[output.topic].result(_TIMEOUT_S)
    wait_until(lambda: output.topic not in admin.list_topics(timeout=_TIMEOUT_S).topics)
    with pytest.raises(OutputMismatchError, match=r"deleted while the job ran.* give the job a "):
        life.planned(1)


@pytest.mark.promise("order-output-checkpoint-new")
def test_another_cluster_is_refused(output: JobOutput, make_broker: MakeBroker) -> None:
    """Of the same topics: nothing of what is out is there."""
    life = output.life()
    _write(life, 0)
    another = KafkaSettings(bootstrap_servers=make_broker().bootstrap_servers)
    create = NewTopic(output.topic, 4, 1)
    admin = AdminClient(another.librdkafka())
    admin.create_topics([create])[output.topic].result(_TIMEOUT_S)
    moved = JobOutput(another, output.topic)
    with pytest.raises(OutputMismatchError, match=r"writes to Kafka cluster .*, and this is"):
        moved.life(life.documents, newest=0, done=0, sent=life.plans.sent)


@pytest.mark.promise("order-output-checkpoint-new")
@pytest.mark.parametrize("is_done", [False, True])
def test_plan_or_done_mark_of_another_cluster_is_refused(
    output: JobOutput, *, is_done: bool
) -> None:
    """Of two checkpoints put together: sequences of one cluster say nothing of another."""
    life = output.life()
    _write(life, 0)
    sent = life.plans.sent
    assert sent is not None
    life.planned(1)
    if is_done:
        sent = replace(sent, cluster="another")
    else:
        life.documents.documents["plans/000000000001"]["cluster"] = "another"
    with pytest.raises(OutputMismatchError, match=r"writes to Kafka cluster another, and this is"):
        output.life(life.documents, newest=1, done=0, sent=sent)


@pytest.mark.promise("order-output-checkpoint-new")
def test_rights_that_are_missing_are_told_by_name(make_broker: MakeBroker) -> None:
    """To take the producer id, and to read: without READ no leader tells what is there."""
    broker = make_broker(
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    admin = AdminClient(kafka.librdkafka())
    admin.create_topics([NewTopic("secret", 4, 1)])["secret"].result(_TIMEOUT_S)
    output = JobOutput(kafka, "secret")
    name = AclBinding(
        ResourceType.TRANSACTIONAL_ID, f"{output.app}.identity", ResourcePatternType.LITERAL,
        "User:ANONYMOUS", "*", AclOperation.WRITE, AclPermissionType.DENY,
    )  # fmt: skip
    admin.create_acls([name])[name].result(_TIMEOUT_S)
    _wait_for_acls(admin, 1)
    with pytest.raises(TopicError, match=r"give the job .* transactional id 'app-secret.identity'"):
        output.life()
    denied = AclBindingFilter(
        ResourceType.TRANSACTIONAL_ID, f"{output.app}.identity", ResourcePatternType.LITERAL,
        "User:ANONYMOUS", "*", AclOperation.WRITE, AclPermissionType.DENY,
    )  # fmt: skip
    admin.delete_acls([denied])[denied].result(_TIMEOUT_S)
    _wait_for_acls(admin, 0)
    rules = [
        AclBinding(
            ResourceType.TOPIC, "secret", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*",
            operation, permission,
        )
        for operation, permission in (
            (AclOperation.ALL, AclPermissionType.ALLOW),
            (AclOperation.READ, AclPermissionType.DENY),
        )
    ]  # fmt: skip
    for rule in admin.create_acls(rules).values():
        rule.result(_TIMEOUT_S)
    _wait_for_acls(admin, len(rules))
    with pytest.raises(OutputMismatchError, match="give the job the right READ on the topics"):
        output.life()


@pytest.mark.promise("order-late-quarantine-topic")
def test_topic_that_gets_partitions_is_followed_behind_a_step(output: JobOutput) -> None:
    """Not within one: its rows would go elsewhere. It is finished with those that it began with."""
    life = output.life()
    _write(life, 0)
    life.planned(1)
    admin = AdminClient(output.kafka.librdkafka())
    grown = admin.create_partitions([NewPartitions(output.topic, 6)])
    grown[output.topic].result(_TIMEOUT_S)
    wider = JobOutput(output.kafka, output.topic, partitions=6)
    again = wider.life(life.documents, newest=1, done=0, sent=life.plans.sent)
    assert len(again.planned(1).plan.topics[output.topic].firsts) == 4
    _write(again, 1)
    _write(again, 2, partition=5)
    assert again.planned(2).plan.topics[output.topic].firsts == (0,) * 6
    _write(again, 3, partition=5)
    assert again.planned(3).plan.topics[output.topic].firsts == (0, 0, 0, 0, 0, 10)


def test_step_that_was_begun_with_more_partitions_than_there_are_is_refused(
    output: JobOutput,
) -> None:
    life = output.life()
    life.planned(0)
    with pytest.raises(OutputMismatchError, match=r"begun with 4 partitions of topic .* has 3 now"):
        life.plans.of_step(0, {output.topic: 3})


@pytest.mark.promise("process-output-added-topology")
def test_a_topic_that_an_unfinished_step_writes_nothing_to_may_be_new(
    output: JobOutput, make_topic: MakeTopic
) -> None:
    life = output.life()
    life.planned(0)
    new = make_topic()
    plans = StepPlanner(output.kafka, app=output.app, documents=life.documents)
    plans.open({output.topic: 4, new: 4}, newest=0, done=-1, sent=None)
    assert plans.of_step(0, {output.topic: 4}).begun_s is None
    with pytest.raises(OutputMismatchError, match=f"begun with nothing of topic '{new}'"):
        plans.of_step(0, {output.topic: 4, new: 4})
    plans.written(0, {})
    assert {*plans.of_step(1, {new: 4}).plan.topics} == {new}

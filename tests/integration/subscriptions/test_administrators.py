"""Administrators beside a job, and two at once, on a real broker: one wins, the other is told."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from sequitur.cli.main import app
from sequitur.consumer.subscription import cursor_moves
from sequitur.consumer.subscription.admin import SubscriptionAdmin
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_moves import CursorMoves, finish_reset
from sequitur.consumer.subscription.detection import FindingKind
from sequitur.consumer.subscription.partitions import PartitionCursor
from sequitur.consumer.subscription.policies import BacklogPolicy, BacklogQuota, TopicPolicies
from sequitur.consumer.subscription.position import Edge, Position, ToPositions
from sequitur.consumer.subscription.registry import (
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.errors import (
    SubscriptionChangedError,
    SubscriptionConnectedError,
    SubscriptionFencedError,
)
from sequitur.kafka.partition import SourcePartition
from tests.support.values import replace
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from sequitur.consumer.subscription.cursor_moves import Moved, Plan
    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from tests.conftest import MakeTopic
    from tests.support.subscribed_topics import SubscribedTopics

_HOLDS = BacklogQuota(100, None, BacklogPolicy.PRODUCER_REQUEST_HOLD)


@pytest.fixture
def orders(topics: SubscribedTopics, make_topic: MakeTopic) -> str:
    topic = make_topic(1, retention_ms=-1)
    topics.fill(topic, 10)
    return topic


@pytest.fixture
def name(topics: SubscribedTopics, orders: str) -> str:
    """A subscription that has acked 0 to 3 of them, and whose name no other test has."""
    name = f"sub-of-{orders}"
    record = SubscriptionRecord(
        name,
        (orders,),
        SubscriptionType.EXCLUSIVE,
        topics.now_ms,
        group=group_of_new(topics.kafka, name),
    )
    SubscriptionAdmin(topics.surveyor).create(record, at=Edge.EARLIEST)
    topics.acks(name, orders, (0, 4))
    return name


def _acks_on(owner: CursorOwner, offset: int) -> None:
    """Ack one more message, as a job does after a step."""
    assert owner.stored is not None
    (one,) = owner.stored.cursors.values()
    one.cursor.ack(offset, end=10)
    owner.write(replace(owner.stored.state, step=offset), [one])


_CHANGES = (
    ("reset", "--to-earliest", "--yes"),
    ("skip", "--all", "--yes"),
    ("expire", "-t", "0", "--yes"),
    ("delete", "--yes"),
)


@pytest.mark.promise("sub-subscription-reset-skipped")
@pytest.mark.parametrize("words", _CHANGES, ids=lambda words: words[0])
def test_a_command_is_refused_while_there_is_an_owner(
    topics: SubscribedTopics, orders: str, name: str, words: tuple[str, ...]
) -> None:
    """The job is not disturbed; a preview, and to look at messages, are not refused."""

    def run(*given: str) -> BaseException | None:
        return CliRunner().invoke(app, ["subscription", *given], env=topics.environ).exception

    with topics.held(name) as job:
        refused = run(words[0], name, *words[1:])
        assert isinstance(refused, SubscriptionConnectedError), refused
        if words[0] != "delete":
            assert run(words[0], name, *words[1:-1], "--dry-run") is None
        assert run("peek", name) is None
        _acks_on(job, 4)
    assert topics.committed(name, orders) == 5


@pytest.mark.promise("sub-subscription-reset-skipped")
@pytest.mark.parametrize("words", _CHANGES[:3], ids=lambda words: words[0])
def test_a_job_is_fenced_and_goes_on_from_the_new_cursors(
    topics: SubscribedTopics, orders: str, name: str, words: tuple[str, ...]
) -> None:
    """It stops by name with its next write, which changes nothing; its next life finds these."""
    with topics.held(name) as job:
        done = CliRunner().invoke(
            app, ["subscription", words[0], name, *words[1:], "--fence"], env=topics.environ
        )
        assert done.exit_code == 0, (done.output, done.exception)
        is_reset = words[0] == "reset"
        why = "was reset: it is in epoch 1, and acks of epoch 0 are refused" if is_reset else name
        with pytest.raises(SubscriptionFencedError, match=why):
            _acks_on(job, 4)
    expected = 0 if is_reset else 10
    assert topics.committed(name, orders) == expected
    with topics.surveyor.cursors.take(name) as again:
        assert again.stored is not None
        assert again.stored.state.epoch == (1 if is_reset else 0)
        where = SourcePartition(orders, 0)
        assert again.stored.cursors[where].cursor.committed_offset == expected


@pytest.mark.promise("sub-subscription-reset-skipped")
def test_a_job_whose_subscription_is_deleted_is_told_so(
    topics: SubscribedTopics, name: str
) -> None:
    """By force; its group goes, too."""
    groups, group = topics.surveyor.groups, group_of_new(topics.kafka, name)
    with topics.held(name) as job:
        wait_until(lambda: groups.committed(group) != {})
        SubscriptionAdmin(topics.surveyor).delete(name, force=True)
        with pytest.raises(SubscriptionFencedError, match="was deleted"):
            _acks_on(job, 4)
    assert groups.committed(group) == {}
    assert topics.surveyor.cursors.read(name) is None


def _plans(topics: SubscribedTopics, name: str) -> tuple[Plan, Plan]:
    moves = CursorMoves(topics.surveyor)
    first = moves.plan_reset(name, ToPositions((Position(0, 2),)))
    return first, moves.plan_reset(name, Edge.LATEST)


@pytest.mark.promise("sub-administrators-change-subscription")
def test_the_second_of_two_resets_is_told(topics: SubscribedTopics, orders: str, name: str) -> None:
    """It was planned for an epoch that is over, and changes nothing."""
    first, second = _plans(topics, name)
    CursorMoves(topics.surveyor).carry_out(first)
    with pytest.raises(SubscriptionChangedError, match="is in epoch 1, and this was for epoch 0"):
        CursorMoves(topics.surveyor).carry_out(second)
    assert topics.committed(name, orders) == 2


@pytest.mark.promise("sub-administrators-change-subscription")
def test_a_skip_that_was_planned_for_other_cursors_is_told(
    topics: SubscribedTopics, orders: str, name: str
) -> None:
    """Else it would skip messages that its preview did not show."""
    moves = CursorMoves(topics.surveyor)
    one, two = moves.plan_skip(name, 3), moves.plan_skip(name, 3)
    moves.carry_out(one)
    with pytest.raises(SubscriptionChangedError, match="have moved meanwhile"):
        moves.carry_out(two)
    assert topics.committed(name, orders) == 7


@pytest.mark.promise("sub-positions-topic-created")
def test_positions_of_a_topic_made_anew_leave_nothing_acked(
    topics: SubscribedTopics, make_topic: MakeTopic, name: str
) -> None:
    """A reset of one partition; all were acked in a topic of the name that is gone, and had three.

    The third one's cursor would hold for the partition that is added some day.
    """
    topic = make_topic(2)
    name = f"{name}-of-two"
    for partition in range(2):
        topics.fill(topic, 20, partition=partition)
    topics.subscribe(name, topic)
    with topics.surveyor.cursors.take(name) as owner:
        acked = [Cursor(CursorIdentity(name, topic, partition), start=10) for partition in range(3)]
        of_another = SubscriptionState(topics={topic: "that-is-gone"})
        owner.write(of_another, [PartitionCursor(one) for one in acked])
    moves = CursorMoves(topics.surveyor)
    plan = moves.plan_reset(name, ToPositions((Position(0, 5),)))
    assert [(one.where.partition, one.target) for one in plan.moves] == [(0, 5), (1, 0)]
    moves.carry_out(plan)
    assert [topics.committed(name, topic, partition) for partition in range(3)] == [5, 0, None]


@pytest.mark.promise("sub-administrators-change-subscription")
def test_two_administrators_at_once(topics: SubscribedTopics, orders: str, name: str) -> None:
    """In threads, in any interleaving: what is stored is what one of them has said, whole."""
    plans = _plans(topics, name)
    start = threading.Barrier(2)

    def carry_out(plan: Plan) -> Moved | Exception:
        start.wait()
        try:
            return CursorMoves(topics.surveyor).carry_out(plan)
        except (SubscriptionChangedError, SubscriptionFencedError) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(carry_out, plans))
    won = [one for one in found if not isinstance(one, Exception)]
    assert len(won) == 1, found
    assert topics.committed(name, orders) == won[0].moves[0].target
    record = topics.surveyor.registry.read().require(name)
    stored = topics.surveyor.cursors.read(name)
    assert stored is not None
    assert (record.epoch, stored.state.epoch) == (1, 1)


@pytest.mark.promise("sub-administrator-dies-middle")
def test_a_reset_whose_process_died_is_finished(
    topics: SubscribedTopics, orders: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between cursors and registry nothing expires; it is told; the next one, or a job, ends it."""
    first, _second = _plans(topics, name)

    def dies(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(cursor_moves, "finish_reset", dies)
        with pytest.raises(SystemExit):
            CursorMoves(topics.surveyor).carry_out(first)
    registry = topics.surveyor.registry
    assert registry.read().require(name).epoch == 0
    topics.policies(orders, TopicPolicies(backlog_quota=_HOLDS, message_ttl_s=60))
    checked = topics.check(after_s=3_600)
    (found,) = [one.sentence for one in checked.findings if one.kind is FindingKind.UNKNOWN]
    assert "its reset was not finished" in found
    assert checked.acked == ()
    assert not any(one.holds_producers for one in checked.quotas)
    stored = topics.surveyor.cursors.read(name)
    assert stored is not None
    assert topics.committed(name, orders) == 2
    finish_reset(registry, name, stored.state)
    record = registry.read().require(name)
    assert (record.epoch, record.reset_ms) == (1, stored.state.written_ms)
    finish_reset(registry, name, SubscriptionState(epoch=0, written_ms=1))
    assert registry.read().require(name) == record
    assert any(one.holds_producers for one in topics.check().quotas)


@pytest.mark.promise("sub-administrator-dies-middle")
def test_the_next_command_finishes_it(
    topics: SubscribedTopics, orders: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skip goes on from the cursors of the new epoch, and notes that one in the registry."""
    first, _second = _plans(topics, name)
    with monkeypatch.context() as patched:
        patched.setattr(cursor_moves, "finish_reset", lambda *_: None)
        CursorMoves(topics.surveyor).carry_out(first)
    moves = CursorMoves(topics.surveyor)
    moved = moves.carry_out(moves.plan_skip(name, 1))
    assert (moved.epoch, moved.moves[0].committed, moved.moves[0].target) == (1, 2, 3)
    assert topics.surveyor.registry.read().require(name).epoch == 1
    assert topics.committed(name, orders) == 3

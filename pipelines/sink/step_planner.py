"""Plans of steps: made before anything of a step goes out, kept in the checkpoint, and followed.

A life of the job takes a new epoch of the producer id that belongs to its name, once. A step that
an earlier life began is finished under that life's epoch: a task of it may be alive yet. The new
epoch begins at sequence 0 with the next step.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sequitur.base.retry import Backoff, Retry, brief_outages
from sequitur.base.stored import dump, load
from sequitur.errors import (
    BrokerError,
    CheckpointError,
    FatalError,
    NameNotAllowedError,
    OutputMismatchError,
    RetriableError,
    SendUnansweredError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka.connections import GivesWay, kept_connections
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import Untold
from sequitur.kafka.record_format import following
from sequitur.pipelines.sink.step_plans import (
    ANEW,
    IdentityOwner,
    SequenceEnds,
    StepPlan,
    TopicPlan,
    check_held,
    not_allowed,
    topic_deleted,
)
from sequitur.pipelines.store.owned_folder import step_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from sequitur.base.retry import Outages
    from sequitur.kafka.connections import Connections
    from sequitur.kafka.identity import Identity
    from sequitur.kafka.settings import KafkaSettings


_Found = TypeVar("_Found")
_OUTPUTS: Final = "outputs.json"
_SUFFIX: Final = ".identity"
_RETRY: Final = Retry(patience_s=30.0, backoff=Backoff(initial_ms=5, maximum_ms=500, jitter=0))


class Documents(Protocol):
    """A folder of documents: the job's checkpoint."""

    @property
    def root(self) -> str:
        """Location of the folder."""

    def read_document(
        self, name: str, meaning: Callable[[dict[str, Any]], _Found]
    ) -> _Found | None:
        """Return what a document says; None when there is none."""

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a document that does not exist yet, whole or not at all."""

    def check_owner(self) -> None:
        """Check that no other process has taken it over."""


@dataclass(frozen=True, slots=True)
class Planned:
    plan: StepPlan
    # when it was written, epoch seconds, if nothing of the step can be out; else None
    begun_s: float | None


class StepPlanner:
    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        app: str,
        documents: Documents,
        outages: Outages | None = None,
    ) -> None:
        self._kafka = kafka
        self._app = app
        self._documents = documents
        self._outages = outages or brief_outages()
        self._identity: Identity | None = None
        self._where: list[OutputPartition] = []
        self._ids: dict[str, str] = {}
        self._takes_over = False
        self._begun: int | None = None
        self._planned: StepPlan | None = None
        self.sent: SequenceEnds | None = None

    def open(
        self,
        topics: Mapping[str, int],
        *,
        newest: int,
        done: int,
        sent: SequenceEnds | None,
        takes_over: bool = False,
    ) -> None:
        """Compare the topics with the checkpoint before anything is written."""
        self._where = where = partitions_of(topics)
        self._takes_over = takes_over
        self._asked(lambda connections: self._open(connections, topics))
        self.sent = sent
        self._begun, self._planned = (newest if newest > done else None), None
        plan = self._plan_of(newest)
        self._asked(lambda connections: self._compare(connections, where, plan))

    def of_step(self, step: int, topics: Mapping[str, int]) -> Planned:
        """Return the plan of a step that writes to topics; written down if it was not yet.

        Of a topic that got more partitions since, it has those that it had when it was written.
        """
        plan = self._plan_of(step)
        begun_s = None
        if plan is None:
            plan = self._asked(lambda connections: self._new_plan(connections, step, topics))
            self._documents.write_document(_name(step), dump(plan))
            # A driver that slept may find no plan because another driver deleted it, steps ago.
            self._documents.check_owner()
            begun_s, self._planned = time.time(), plan
        for topic, partitions in topics.items():
            planned = plan.topics.get(topic)
            if planned is None or len(planned.firsts) > partitions:
                had = "nothing of" if planned is None else f"{len(planned.firsts)} partitions of"
                raise OutputMismatchError(
                    f"step {step} was begun with {had} topic {topic!r}, which has {partitions} "
                    "now: its rows would go elsewhere. Run the job as it was until the step is "
                    f"done, or {ANEW}"
                )
        return Planned(plan, begun_s)

    def written(self, step: int, rows: Mapping[OutputPartition, int]) -> None:
        plan, before = self._plan_of(step), self.sent
        assert plan is not None
        topics = {} if before is None else dict(before.topics)
        if before is not None and before.identity != plan.identity:
            topics = {name: (known, (0,) * len(of)) for name, (known, of) in topics.items()}
        for topic, planned in plan.topics.items():
            sequences = tuple(
                following(first, rows.get(OutputPartition(topic, number), 0))
                for number, first in enumerate(planned.firsts)
            )
            topics[topic] = planned.topic_id, sequences
        sent = SequenceEnds(plan.cluster, plan.identity, topics)
        if step == self._begun:
            # Tasks have seen the partitions that they wrote to. Nobody has seen the others.
            self._asked(lambda connections: self._check_held(connections, self._where, sent))
        self.sent = sent

    def _plan_of(self, step: int) -> StepPlan | None:
        if self._planned is not None and self._planned.step == step:
            return self._planned
        if step == self._begun:
            self._planned = self._documents.read_document(_name(step), partial(load, StepPlan))
            return self._planned
        return None

    async def _open(self, connections: Connections, topics: Mapping[str, int]) -> None:
        await self._refresh(connections, topics)
        cluster = connections.wire.cluster_id
        found = self._documents.read_document(_OUTPUTS, partial(load, IdentityOwner))
        if found is None:
            found = IdentityOwner(self._app, cluster)
            self._documents.write_document(_OUTPUTS, dump(found))
        if found.app != self._app:
            raise CheckpointError(
                f"{self._documents.root} belongs to a job with app = {found.app!r}, not "
                f"{self._app!r}: its producer id belongs to that name"
            )
        self._check_cluster(found.cluster, cluster)
        if self._identity is None:
            name = f"{self._app}{_SUFFIX}"
            try:
                self._identity = await connections.wire.claim(name, None)
            except NameNotAllowedError as error:
                raise TopicError(
                    f"{error}: give the job the rights WRITE and DESCRIBE on the transactional "
                    f"id {name!r}, which owns its producer id. The job begins no transactions"
                ) from error

    async def _compare(
        self,
        connections: Connections,
        where: Collection[OutputPartition],
        plan: StepPlan | None,
    ) -> None:
        """Compare partitions with the plan of an unfinished step, and with the done mark."""
        sent = self.sent
        known = {} if sent is None else sent.topics
        written = {} if plan is None else plan.topics
        for one in (sent, plan):
            if one is not None:
                self._check_cluster(one.cluster, connections.wire.cluster_id)
        for topic, (topic_id, _sequences) in known.items():
            self._check_id(topic, topic_id)
        for topic, planned in written.items():
            self._check_id(topic, planned.topic_id)
        # Partitions of the unfinished step are seen once it is written.
        await self._check_held(connections, where, sent, lambda one: one.topic not in written)

    async def _check_held(
        self,
        connections: Connections,
        where: Collection[OutputPartition],
        sent: SequenceEnds | None,
        is_meant: Callable[[OutputPartition], bool] = lambda _: True,
    ) -> None:
        """Check that partitions may be read, and hold exactly the rows of the done mark."""
        assert self._identity is not None
        wrote = self._identity if sent is None else sent.identity
        ask = functools.partial(connections.leaders.states, producer_id=wrote.producer_id)
        for one, told in (await self._of_all(connections, where, ask)).items():
            if told is Untold.NOT_ALLOWED:
                raise not_allowed(one)
            if is_meant(one) and not (sent is None and self._takes_over):
                check_held(one, told, sent)

    async def _new_plan(
        self, connections: Connections, step: int, topics: Mapping[str, int]
    ) -> StepPlan:
        assert self._identity is not None
        where = partitions_of(topics)
        ends = await self._of_all(connections, where, connections.leaders.ends)
        # After asking where they end: an answer about a recreated topic must not count.
        await self._refresh(connections, topics)
        sent, planned = self.sent, {}
        is_ours = sent is not None and sent.identity == self._identity
        for topic, partitions in topics.items():
            _id, firsts = sent.topics.get(topic, (None, ())) if sent and is_ours else (None, ())
            planned[topic] = TopicPlan(
                topic_id=self._ids.get(topic),
                firsts=(*firsts, *(0 for _ in range(partitions - len(firsts)))),
                ends=tuple(ends[OutputPartition(topic, number)] for number in range(partitions)),
                batch_bytes=await connections.batch_bytes_of(topic),
            )
        return StepPlan(step, connections.wire.cluster_id, self._identity, planned)

    async def _of_all(
        self,
        connections: Connections,
        where: Collection[OutputPartition],
        ask: Callable[[Collection[OutputPartition]], Awaitable[Mapping[OutputPartition, _Found]]],
    ) -> dict[OutputPartition, _Found]:
        """Ask leaders until each partition has an answer."""
        found: dict[OutputPartition, _Found] = {}
        attempts = _RETRY.attempts()
        while missing := [one for one in where if one not in found]:
            told = await ask(missing)
            found |= {one: what for one, what in told.items() if what is not Untold.ASK_AGAIN}
            if len(found) < len(where):
                silence = SendUnansweredError(f"{missing[0]}: its leader does not answer")
                await attempts.pause(silence)
                await self._refresh(connections, {one.topic for one in missing})
        return found

    async def _refresh(self, connections: Connections, topics: Collection[str]) -> None:
        """Ask for leaders and ids; each topic must be the same one as before."""
        if not await connections.leaders.refresh(topics):
            raise RetriableError("no broker answers a metadata request")
        for topic in topics:
            found = connections.wire.topic_id(topic)
            if found is not None:
                self._check_id(topic, self._ids.get(topic), found.hex())
                self._ids[topic] = found.hex()
            elif topic in self._ids:
                if connections.leaders.is_deleted(topic):
                    raise topic_deleted(topic)
                raise RetriableError(f"topic {topic!r} is not there now")

    def _check_cluster(self, known: str | None, found: str | None) -> None:
        if known != found:
            raise OutputMismatchError(
                f"{self._documents.root} belongs to a job that writes to Kafka cluster {known}, "
                f"and this is {found}: {ANEW}"
            )

    def _check_id(self, topic: str, known: str | None, found: str | None = None) -> None:
        found = found or self._ids.get(topic)
        if known is not None and found is not None and known != found:
            raise OutputMismatchError(
                f"topic {topic!r} is not the one that the job wrote to: it was deleted and "
                f"recreated (its id was {known} and is {found}). What it held is gone: {ANEW}"
            )

    def _asked(self, ask: Callable[[Connections], Any]) -> Any:
        """Return the brokers' answer; wait while they do not answer."""

        def run() -> Any:
            bound = GivesWay(lambda: self._outages.is_over).bound
            connections = kept_connections(self._kafka, bound)
            return connections.run(ask(connections), bound)

        try:
            return self._outages.outlast(run, _passes)
        except (BrokerError, SendUnansweredError) as error:
            told = f"the output topics cannot be looked at: {error}"
            raise (TopicError if _passes(error) is None else UnansweredError)(told) from error


def partitions_of(topics: Mapping[str, int]) -> list[OutputPartition]:
    return [OutputPartition(name, one) for name, count in topics.items() for one in range(count)]


def _name(step: int) -> str:
    return f"plans/{step_name(step)}"


def _passes(error: Exception) -> str | None:
    if isinstance(error, FatalError) or not isinstance(error, BrokerError | SendUnansweredError):
        return None
    return str(error)

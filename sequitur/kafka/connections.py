"""Connections to the brokers, and their event loop, for code that is not asynchronous.

The leaders of partitions say what they have of a producer and where logs end, and take batches.
Whoever asks gets an answer for each partition: what is not answered now is to be asked again.

Before all that it is checked that a broker can be reached: clients would retry for long.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import math
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from sequitur.base.settings import SettingsError
from sequitur.errors import (
    BrokerError,
    BrokerUnreachableError,
    FatalError,
    RequestUnknownError,
    RetriableError,
)
from sequitur.kafka.log_reading import fetch, last_sequence_in_log, log_ends, timestamp_from
from sequitur.kafka.metadata import log_sizes
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import (
    Told,
    Untold,
    known_producers,
    producer_states,
)
from sequitur.kafka.settings import to_reach
from sequitur.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from typing import TypeVar

    from sequitur.kafka.identity import Identity
    from sequitur.kafka.log_reading import Fetched
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.producer_ids import KnownProducer, PartitionAnswer

    T = TypeVar("T")
    _Ask = Callable[[Any], Awaitable[Any]]
    from collections.abc import Coroutine

    from sequitur.kafka.settings import KafkaSettings


_Answer: TypeAlias = "asyncio.Future[PartitionAnswer]"

_ASKED_AT_ONCE: Final = 32
_REQUEST_BYTES: Final = 4 << 20
"""Of a request, where its batches are not larger: brokers limit it (`socket.request.max.bytes`)."""


class _Asked(NamedTuple):
    """Who is asked for records."""

    node: int
    rack: str
    is_replica: bool = False


class Leaders:
    """Asks the leaders of partitions.

    Batches that are given in one turn of the event loop go to a leader in one request: a broker
    takes the requests of a connection one after the other, each once the one before is answered.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._due: dict[int, list[tuple[OutputPartition, bytes, _Answer]]] = {}
        self._requests: set[asyncio.Task[None]] = set()
        # replicas that leaders have named for this machine's rack, and until when they count; None
        # where the one that was named has failed
        self._replicas: dict[SourcePartition, tuple[int | None, float]] = {}

    async def close(self) -> None:
        """Let go of answers that nobody waits for any more, once the connections are closed."""
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def refresh(
        self, topics: Iterable[str], *, unless_led: Collection[SourcePartition] = ()
    ) -> bool:
        """Ask the brokers again who leads, unless it was said of all of some; whether one answers.

        Who led when it was asked last may not lead now.
        """
        if unless_led and all(self._wire.leader(*where) is not None for where in unless_led):
            return True
        return await self._wire.refresh(topics)

    async def connect(self, where: OutputPartition) -> int:
        """Connect to a partition's leader, if it is not connected, and return it."""
        node = self._wire.leader(*where)
        if node is None or not (self._wire.is_connected(node) or await self._wire.connect(node)):
            raise RetriableError(f"{where} has no leader that can be reached")
        return node

    def connection(self, where: OutputPartition) -> tuple[int, float] | None:
        """Return a partition's leader, and since when it is connected; None while it is not."""
        node = self._wire.leader(*where)
        since_s = None if node is None else self._wire.connected_since(node)
        return None if node is None or since_s is None else (node, since_s)

    async def states(
        self, partitions: Collection[OutputPartition], producer_id: int
    ) -> dict[OutputPartition, Told]:
        """Return what leaders have of a producer id, for each partition."""
        found: dict[OutputPartition, Told] = dict.fromkeys(partitions, Untold.ASK_AGAIN)
        for node, led in self.by_leader(partitions).items():
            try:
                ask = functools.partial(self._wire.ask, node)
                told = await producer_states(ask, led, producer_id)
            except RetriableError:
                continue
            found |= {OutputPartition(*where): state for where, state in told.items()}
        return found

    async def ends(self, partitions: Collection[OutputPartition]) -> dict[OutputPartition, int]:
        """Return where logs end for readers; of partitions whose leader says so now."""
        return await self._told(log_ends, partitions)

    async def offsets(
        self, partitions: Collection[OutputPartition], time_ms: int
    ) -> dict[OutputPartition, int]:
        """Return the first offsets that are not before a time; see `log_ends`."""
        return await self._told(functools.partial(log_ends, time_ms=time_ms), partitions)

    async def fetch(
        self,
        places: Mapping[SourcePartition, int],
        limit_s: float | None = None,
        *,
        rack: str = "",
        **how: Any,
    ) -> dict[SourcePartition, Fetched]:
        """Return what brokers send from places on, of those that answer now; see `fetch`.

        Leaders are asked; with a rack, replicas there that they have named. A broker that has not
        answered after `limit_s` costs no other its answer.
        """

        async def one(asked: _Asked, some: Mapping[SourcePartition, int]) -> list[Fetched]:
            try:
                async with asyncio.timeout(limit_s):
                    ask = functools.partial(self._wire.ask, asked.node)
                    told = await fetch(ask, some, rack=asked.rack, **how)
            except (RetriableError, TimeoutError):
                told = {}
            return self._heard(asked, some, told)

        by_node: dict[_Asked, dict[SourcePartition, int]] = {}
        for where, offset in places.items():
            if (asked := self._asked(where, rack)) is not None:
                by_node.setdefault(asked, {})[where] = offset
        answers = await asyncio.gather(*(one(asked, some) for asked, some in by_node.items()))
        return {one.where: one for several in answers for one in several}

    def _asked(self, where: SourcePartition, rack: str) -> _Asked | None:
        """Return who is to be asked for records; None where no leader is known."""
        leader = self._wire.leader(*where)
        replica, until_s = self._replicas.get(where, (None, 0.0))
        if rack and time.monotonic() < until_s:
            # A leader that is told the rack would name the replica again that has failed.
            if replica is not None:
                return _Asked(replica, rack, is_replica=True)
            rack = ""
        return None if leader is None else _Asked(leader, rack)

    def _heard(
        self,
        asked: _Asked,
        places: Iterable[SourcePartition],
        told: Mapping[SourcePartition, Fetched],
    ) -> list[Fetched]:
        """Take note of which replicas are to be asked, and return the answers that count.

        Where a replica gives none, or an error, its leader is asked: the replica may be behind.
        """
        found, until_s = [], time.monotonic() + _REPLICA_FOR_S
        for where in places:
            one = told.get(where)
            if asked.is_replica and (one is None or one.code):
                self._replicas[where] = None, until_s
            elif one is not None:
                found.append(one)
                if one.replica is not None:
                    self._replicas[where] = one.replica, until_s
        return found

    async def log_sizes(
        self, partitions: Collection[OutputPartition]
    ) -> dict[OutputPartition, int]:
        """Return the bytes of logs, of partitions whose leader says so now."""
        return await self._told(log_sizes, partitions, or_without=RequestUnknownError)

    async def timestamps(
        self, places: Iterable[tuple[OutputPartition, int]], ends: Mapping[OutputPartition, int]
    ) -> dict[tuple[OutputPartition, int], int | None]:
        """Return the timestamp of the first committed record from places on, of those told now."""

        async def one(
            where: OutputPartition, offset: int
        ) -> tuple[tuple[OutputPartition, int], int | None] | None:
            node = self._wire.leader(*where)
            if node is None:
                is_gone = self._wire.topic_id(where.topic) is None
                return ((where, offset), None) if is_gone else None
            ask = functools.partial(self._wire.ask, node)
            try:
                return (where, offset), await timestamp_from(ask, *where, offset, ends[where])
            except RetriableError:
                return None

        found: dict[tuple[OutputPartition, int], int | None] = {}
        wanted = list(places)
        for first in range(0, len(wanted), _ASKED_AT_ONCE):
            some = wanted[first : first + _ASKED_AT_ONCE]
            told = await asyncio.gather(*(one(*place) for place in some))
            found |= dict(filter(None, told))
        return found

    async def producers(
        self, partitions: Collection[OutputPartition]
    ) -> dict[OutputPartition, list[KnownProducer]]:
        """Return the producers that partitions remember, of those whose leader says so now."""
        return await self._told(known_producers, partitions, or_without=RequestUnknownError)

    async def last_sequence_in_log(
        self, where: OutputPartition, identity: Identity, offset: int
    ) -> int | None:
        """Return an identity's last sequence that readers see, from an offset on, if any."""
        node = self._wire.leader(*where)
        if node is None:
            raise RetriableError(f"{where} has no leader")
        ask = functools.partial(self._wire.ask, node)
        return await last_sequence_in_log(ask, *where, identity, offset)

    def produce(self, where: OutputPartition, batch: bytes) -> asyncio.Future[PartitionAnswer]:
        """Give a batch to a partition's leader, and return its answer to be awaited.

        It goes by the connection of `connection`, or not at all: it is written in the next turn of
        the event loop, and to make another takes longer.
        """
        node = self._wire.leader(*where)
        if node is None or not self._wire.is_connected(node):
            raise RetriableError(f"{where} has no leader that is connected")
        loop = asyncio.get_running_loop()
        answer: _Answer = loop.create_future()
        if node not in self._due:
            self._due[node] = []
            loop.call_soon(self._send, node)
        self._due[node].append((where, batch, answer))
        return answer

    def _send(self, node: int) -> None:
        due = self._due.pop(node)
        while due:
            # A request has one batch of a partition, and is not large if need not be.
            topics: dict[str, list[tuple[int, bytes]]] = {}
            answers: dict[OutputPartition, _Answer] = {}
            later, size = [], 0
            waiting: set[OutputPartition] = set()
            for one in due:
                where, batch, answer = one
                is_large = size + len(batch) > _REQUEST_BYTES and answers
                if where in answers or where in waiting or is_large:
                    waiting.add(where)
                    later.append(one)
                    continue
                size += len(batch)
                topics.setdefault(where.topic, []).append((where.partition, batch))
                answers[where] = answer
            due = later
            try:
                answered = self._wire.produce(node, list(topics.items()))
            except RetriableError as error:
                _fail(answers.values(), error)
                continue
            request = asyncio.ensure_future(_hand_out(answered, answers))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    async def _told(
        self,
        ask_leader: Callable[[_Ask, Mapping[str, list[int]]], Awaitable[dict[tuple[str, int], T]]],
        partitions: Collection[OutputPartition],
        *,
        or_without: type[Exception] = RetriableError,
    ) -> dict[OutputPartition, T]:
        """Ask the leaders of partitions; those of leaders that do not answer now are left out."""

        async def one(node: int, led: Mapping[str, list[int]]) -> dict[tuple[str, int], T]:
            try:
                return await ask_leader(functools.partial(self._wire.ask, node), led)
            except (RetriableError, or_without):
                return {}

        by_leader = self.by_leader(partitions).items()
        answers = await asyncio.gather(*(one(node, led) for node, led in by_leader))
        return {OutputPartition(*where): end for told in answers for where, end in told.items()}

    def by_leader(self, partitions: Iterable[OutputPartition]) -> dict[int, dict[str, list[int]]]:
        """Return partitions by the node that leads them; those without a leader are left out."""
        found: dict[int, dict[str, list[int]]] = {}
        for where in partitions:
            node = self._wire.leader(*where)
            if node is not None:
                found.setdefault(node, {}).setdefault(where.topic, []).append(where.partition)
        return found


async def _hand_out(
    answered: Awaitable[dict[tuple[str, int], PartitionAnswer]],
    answers: dict[OutputPartition, _Answer],
) -> None:
    try:
        found = await answered
    except Exception as error:  # noqa: BLE001 - whoever waits for an answer gets it
        _fail(answers.values(), error)
        return
    for where, answer in answers.items():
        if where not in found:
            _fail([answer], RetriableError(f"{where}: the answer left it out"))
        elif not answer.done():
            answer.set_result(found[where])


def _fail(answers: Iterable[_Answer], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
            answer.exception()  # retrieved: its batch may have been given up


_REQUEST_TIMEOUT: Final = timedelta(seconds=10)
"""A broker that hangs is asked again after that, by another connection."""
_RELIED_ON_S: Final = 60.0
_KNOWN_FOR_S: Final = 60.0
_REPLICA_FOR_S: Final = 60.0
"""So long a replica of this machine's rack is read from, or is not, before its leader is asked."""
_BATCH_BYTES: Final = 256 << 10
"""Of a batch, whatever its topic takes."""
_BATCH_OVERHEAD: Final = 128

_taking: Final = threading.Lock()
_kept: dict[tuple[int, KafkaSettings], Connections] = {}
"""This process's connections, by thread and by their settings: Python workers run many tasks, and a
driver several streams. Connections that were not used for long are closed, since they may be
broken."""


_LOOK_S: Final = 0.2
_STOPPING_S: Final = 3.0


class GivesWay:
    """Tells when work of a job that is to stop waits for brokers in vain.

    Brokers that answer are waited for: a job ends once its last rows are there.
    """

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._heard_s = time.monotonic()

    def __call__(self) -> bool:
        """Return whether the job is to stop, and brokers have said nothing for some seconds."""
        return self._is_stopping() and time.monotonic() - self._heard_s > _STOPPING_S

    def heard(self) -> None:
        """Take note that the work goes on."""
        self._heard_s = time.monotonic()

    @property
    def bound(self) -> Bound:
        """What the work is bound by."""
        return Bound(math.inf, self)


@dataclass(frozen=True, slots=True)
class Bound:
    """How long requests may take together, whatever each of them may take alone."""

    until_s: float  # by the clock of `time.monotonic`
    is_stopping: Callable[[], bool] = bool  # whether nobody waits for answers any more

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.until_s - time.monotonic())

    async def hold(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work within the bound.

        Raises:
            RetriableError: It is not done in time, or nobody waits for it.
        """
        task = asyncio.ensure_future(work)
        try:
            # What ends by itself once no time is left ends first, and gives what was answered.
            end_s = self.until_s + _LOOK_S
            while not task.done() and time.monotonic() < end_s and not self.is_stopping():
                await asyncio.wait([task], timeout=_LOOK_S)
            if task.done():
                return task.result()
            raise RetriableError("the job is to stop" if self.left_s else "no broker answers")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


class Connections:
    """Connections to one cluster. Not for use by two threads at once."""

    def __init__(self, kafka: KafkaSettings, bound: Bound | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._used_s = time.monotonic()
        self._thread = threading.current_thread()
        self._is_interrupted = False
        self._limits: dict[str, tuple[float, int]] = {}
        try:
            self.wire = self.run(_wire(kafka), bound)
        except BaseException:
            self._loop.close()
            raise
        self.leaders = Leaders(self.wire)

    def run(self, work: Coroutine[Any, Any, T], bound: Bound | None = None) -> T:
        """Run the event loop until the work is done; where that is interrupted, all of it ends.

        Else the work would go on, unseen, with whatever the loop is run for next.
        """
        task = self._loop.create_task(work if bound is None else bound.hold(work))
        try:
            if not _is_in_event_loop():
                return self._loop.run_until_complete(task)
            # A notebook runs all its cells in one, and a thread has one at most.
            with ThreadPoolExecutor(1) as beside:
                return beside.submit(self._loop.run_until_complete, task).result()
        finally:
            self._used_s = time.monotonic()
            if not task.done():
                self._end(task)

    def _end(self, interrupted: asyncio.Task[Any]) -> None:
        # It may have been the task that reads answers which the interrupt has ended.
        self._is_interrupted = True
        interrupted.cancel()
        with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
            self._loop.run_until_complete(interrupted)

    async def batch_bytes_of(self, topic: str) -> int:
        """Return how large a topic's batch may be before compression; asked for once a minute."""
        now_s = time.monotonic()
        known = self._limits.get(topic)
        if known is not None and now_s - known[0] < _KNOWN_FOR_S:
            return known[1]
        limit = _BATCH_BYTES
        # Without the right to ask, the broker's default is assumed, which is larger.
        with contextlib.suppress(FatalError):
            limit = min(limit, await self.wire.max_message_bytes(topic))
        limit -= _BATCH_OVERHEAD
        self._limits[topic] = now_s, limit
        return limit

    def forget_limit(self, topic: str) -> None:
        """Ask for a topic's limit again: a batch within it was refused."""
        self._limits.pop(topic, None)

    def is_fresh(self) -> bool:
        """Return whether this thread used them recently, and was not interrupted."""
        is_ours = self._thread is threading.current_thread()
        is_recent = time.monotonic() - self._used_s < _RELIED_ON_S
        return is_ours and is_recent and not self._is_interrupted

    def is_abandoned(self) -> bool:
        """Return whether the thread that opened them has ended."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Close them; those that another thread uses, as the process ends, end with it."""
        if self._loop.is_running():
            return
        self.run(self.wire.close())
        self.run(self.leaders.close())
        self._loop.close()


def _is_in_event_loop() -> bool:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop().is_running()
    return False


def kept_connections(kafka: KafkaSettings, bound: Bound | None = None) -> Connections:
    """This thread's connections to a cluster, reopened when they are not fresh."""
    key = threading.get_ident(), to_reach(kafka)
    known = _kept.get(key)
    if known is None or not known.is_fresh():
        _close_unused(key)
        known = _kept[key] = Connections(kafka, bound)
    return known


def close_own() -> None:
    """Close this thread's connections, which is about to end."""
    own = threading.get_ident()
    with _taking:
        found = [_kept.pop(key) for key in list(_kept) if key[0] == own]
    for one in found:
        one.close()


def _close_unused(own: tuple[int, KafkaSettings]) -> None:
    """Close this thread's, and those of threads that have ended, whose numbers others get."""
    with _taking:
        unused = {key: one for key, one in _kept.items() if key == own or one.is_abandoned()}
        for key in unused:
            del _kept[key]
    for one in unused.values():
        one.close()


@atexit.register
def _close_all() -> None:
    while _kept:
        _kept.popitem()[1].close()


async def _wire(kafka: KafkaSettings) -> Wire:
    wire = Wire(kafka, client_id="sequitur-reorder", request_timeout=_REQUEST_TIMEOUT)
    try:
        await wire.start()
    except BaseException:
        await wire.close()
        raise
    return wire


_CONNECT_TIMEOUT_S: Final = 2.0
_ANSWER_TIMEOUT: Final = timedelta(seconds=10)
"""A broker that accepts connections may be busy: it gets more time."""
_CLIENT_ID: Final = "sequitur-check"


def require_broker(kafka: KafkaSettings, *, timeout_s: float = _CONNECT_TIMEOUT_S) -> None:
    """Return once a broker accepts the login and answers.

    All addresses are tried side by side, and the first that accepts a connection is enough.
    """
    _require_listener(kafka, timeout_s)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(_ask(kafka))
    else:  # as in a notebook, whose loop runs in the thread of its cells
        with ThreadPoolExecutor(1) as own:
            own.submit(asyncio.run, _ask(kafka)).result()


async def why_no_broker(kafka: KafkaSettings, *, limit_s: float) -> str:
    """Return why no broker can be used, as far as a look tells within `limit_s`."""
    try:
        await asyncio.to_thread(_require_listener, kafka, limit_s / 2)
        async with asyncio.timeout(limit_s / 2):
            await _ask(kafka)
    except TimeoutError:
        return "somebody accepts connections, and does not answer as a broker"
    except (BrokerError, SettingsError) as error:
        return str(error)
    return "a broker answers, and has not given a producer id yet"


async def _ask(kafka: KafkaSettings) -> None:
    wire = Wire(kafka, client_id=_CLIENT_ID, request_timeout=_ANSWER_TIMEOUT)
    try:
        await wire.start()
    finally:
        await wire.close()


def _require_listener(kafka: KafkaSettings, timeout_s: float) -> None:
    addresses = kafka.bootstrap_servers.split(",")
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
    for address in addresses:
        # Nobody waits for these: a name server that is silent holds a thread for long.
        threading.Thread(
            target=lambda one: answers.put((one, _refusal(one, timeout_s))),
            args=(address,),
            daemon=True,
        ).start()
    refusals = dict.fromkeys(addresses, f"no answer in {timeout_s:g} s")
    deadline_s = time.monotonic() + timeout_s
    for _ in addresses:
        try:
            address, refusal = answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            break
        if refusal is None:
            return
        refusals[address] = refusal
    told = "; ".join(f"{address}: {refusal}" for address, refusal in refusals.items())
    raise BrokerUnreachableError(f"no broker can be reached: {told}")


def _refusal(address: str, timeout_s: float) -> str | None:
    """Return why an address accepts no connection; None when it does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except TimeoutError:
        return f"no answer in {timeout_s:g} s"
    except (OSError, OverflowError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None

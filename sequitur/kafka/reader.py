"""The one way to read records of Kafka, for code that is not asynchronous: by exact ranges.

It reads by the connections that the calling thread has, and asks all leaders at once. What comes is
in order within a partition, in rows or in columns, as its reader wants it (`kafka.stored_batches`).
A range is read to its end, whatever is at the end: a marker of a transaction, records of one that
was aborted, or nothing since the topic was compacted.

librdkafka reads where a client has to be a member of a group, or reads ahead in the background; and
for commands that are to see what any consumer sees (`topic_reader`).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import Backoff, Retry, any_of
from sequitur.errors import (
    FatalError,
    LogRangeError,
    RetriableError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka.connections import Bound, kept_connections
from sequitur.kafka.log_reading import EARLIEST, together
from sequitur.kafka.partition import OutputPartition, SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from sequitur.kafka.connections import Connections
    from sequitur.kafka.log_reading import Fetched
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.kafka.stored_batches import Record, RecordColumns

    Spans = Mapping[SourcePartition, tuple[int, int]]
    """Each partition's first offset, and the offset behind its last one."""

RACK: Final = "SEQUITUR_RACK"
"""The variable for this machine's rack, as brokers name it (`broker.rack`)."""
_PATIENCE_S: Final = 60.0
"""For a transaction of a process that died: `TRANSACTION_TIMEOUT_MS`, and a broker's round of ten
seconds that ends such ones."""
_BACKOFF: Final = Backoff(initial_ms=20, maximum_ms=200, jitter=0)
_WAIT_MS: Final = 50
_PARTITION_BYTES: Final = 1 << 20
_REQUEST_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 16 << 20
"""The bytes of batches that are unpacked at once."""
_TOGETHER_BYTES: Final = 1 << 20
"""So many bytes of answers are unpacked together, or one answer if it is larger."""
_FIRST_BYTES: Final = 64 << 10
"""The bytes to ask of a partition whose record size is unknown."""
_BEHIND_BYTES: Final = 16 << 20
"""The total bytes of kept answers' ends."""
_MORE: Final = 1.25
"""Ask for so many times the mean size of a range."""
_MOST_DOUBLINGS: Final = 16
_OPEN: Final = "no broker answers, or a transaction in it stays open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads records from one offset to before another."""

    kafka: KafkaSettings
    is_committed: bool = True  # whether to skip records of aborted and open transactions
    # whether to go on where a log begins now, if wanted records are deleted; else that is an error
    passes_deleted: bool = False
    # how long a partition that is not read yet may be silent, whatever other leaders send; a leader
    # that sends other partitions has not got to it
    patience_s: float = _PATIENCE_S
    is_stopping: Callable[[], bool] = bool  # whether nobody waits for records any more
    # the packed bytes of an answer, unless a batch is larger; a small range asks for less
    partition_bytes: int = _PARTITION_BYTES
    # for topics that were read: mean packed bytes of an offset, and those of the largest batch
    packed: dict[str, tuple[float, int]] = field(default_factory=dict, repr=False, compare=False)
    # answers behind ranges, for the next ranges; None to drop them. A caller that keeps it has to
    # check that topics are still the same
    behind: dict[SourcePartition, Fetched] | None = field(default=None, repr=False, compare=False)

    def rows(self, spans: Spans) -> Iterator[tuple[SourcePartition, Record]]:
        """Yield the records of ranges one by one; those of a partition in order.

        Raises:
            LogRangeError: Records that were to be read are deleted.
            TopicError: The brokers refuse it.
            UnansweredError: Nothing came for as long as patience goes, or nobody waits for it.
        """
        for some in self._read(spans):
            for record in some.rows():
                yield some.where, record

    def columns(
        self,
        spans: Spans,
        most_bytes: int | None = None,
        reached: dict[SourcePartition, int] | None = None,
    ) -> Iterator[tuple[SourcePartition, RecordColumns]]:
        """Yield the records of ranges as they come, of at most so many bytes once unpacked in all.

        Those of a partition are in order, in one or more pieces. What is unpacked at once is a
        batch, and some MiB of smaller ones before it. `reached` is told how far partitions are
        read: where one does not answer, what has come of all is given before the error.

        Raises:
            ReadTooLargeError: There are more bytes; besides what `rows` raises.
        """
        for parts, columns in self.together(spans, most_bytes, reached):
            begin = 0
            for where, count in parts:
                yield where, columns.part(begin, begin + count)
                begin += count

    def together(
        self,
        spans: Spans,
        most_bytes: int | None = None,
        reached: dict[SourcePartition, int] | None = None,
    ) -> Iterator[tuple[list[tuple[SourcePartition, int]], RecordColumns]]:
        """Yield the records of ranges as `columns` does, but those of small answers at once.

        With each piece comes how many of its records are of which partition, in their order.
        """
        left, answers = most_bytes, self._read(spans)
        most = min(_TOGETHER_BYTES, self.partition_bytes)
        failed: Exception | None = None
        is_over = False
        while not is_over:
            some: list[Fetched] = []
            size = 0
            while size < most and not is_over:
                try:
                    one = next(answers)
                except StopIteration:
                    is_over = True
                except Exception as error:  # noqa: BLE001 - raised behind what has come
                    is_over, failed = True, error
                else:
                    some.append(one)
                    size += sum(len(batch.raw) for batch in one.batches)
            for parts, columns in together(some, left, _PIECE_BYTES):
                if left is not None:
                    left -= columns.size_bytes
                yield parts, columns
            if reached is not None:
                reached |= {one.where: one.next_offset for one in some}
        if failed is not None:
            raise failed

    def stable_ends(self, places: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """Return where open transactions begin, or logs end, behind a place of each partition.

        Raises:
            TopicError: The brokers refuse it.
            UnansweredError: Not all leaders answered for as long as patience goes.
        """
        bound = Bound(time.monotonic() + self.patience_s, self.is_stopping)

        def ask() -> dict[SourcePartition, int]:
            connections = kept_connections(self.kafka, bound)
            leaders = connections.leaders
            connections.run(leaders.refresh({where.topic for where in places}), bound)
            told = connections.run(leaders.fetch(places, bound.left_s, partition_bytes=1), bound)
            if untold := places.keys() - told.keys():
                raise RetriableError(f"{_named(untold)}: no leader answers")
            # Places that are deleted meanwhile have no answer.
            return {where: max(one.last_stable, places[where]) for where, one in told.items()}

        try:
            retry = Retry(patience_s=self.patience_s, backoff=_BACKOFF)
            return retry.run(ask, any_of(RetriableError))
        except RetriableError as error:
            raise UnansweredError(str(error)) from error
        except FatalError as error:
            raise TopicError(f"{_named(places)} cannot be read: {error}") from error

    def _read(self, spans: Spans) -> Iterator[Fetched]:
        stops = {where: stop for where, (first, stop) in spans.items() if first < stop}
        places = {where: spans[where][0] for where in stops}
        topics = {where.topic for where in stops}
        yield from self._taken(self._kept(places), places, stops)
        attempts = Retry(backoff=_BACKOFF).attempts(time.monotonic)
        silence, portions = _Silence(self, stops), _Portions(self, stops)
        is_known = False  # whether the present leaders are known
        # Ask the last known leaders first: a former leader says so.
        led: Collection[SourcePartition] = stops
        while stops:
            why = _OPEN
            told: list[Fetched] = []
            bound = silence.bound(stops)
            try:
                connections = kept_connections(self.kafka, bound)
                if not is_known:
                    connections.run(connections.leaders.refresh(topics, unless_led=led), bound)
                led = ()
                wait_ms = 0 if is_known else _WAIT_MS
                told = self._fetched(connections, places, portions.of(places), bound, wait_ms)
            except RetriableError as error:
                why = str(error) if bound.left_s else _OPEN
            except LogRangeError:
                raise
            except FatalError as error:
                raise TopicError(f"{_named(stops)} cannot be read: {error}") from error
            some = portions.learn(told)
            is_known = bool(some) and len(told) == len(places)
            if some:
                silence.ended(one.where for one in told)
                attempts.succeed()
            silence.look(stops, why, is_over=not some and self.is_stopping())
            if not some and silence.failed is None:
                attempts.sleep(UnansweredError(why))
            begun_s = time.monotonic()
            yield from self._taken(some, places, stops)
            silence.end_round(time.monotonic() - begun_s)

    def _taken(
        self,
        told: Iterable[Fetched],
        places: dict[SourcePartition, int],
        stops: dict[SourcePartition, int],
    ) -> Iterator[Fetched]:
        """Yield the answers for ranges, and note where the ranges go on."""
        for one in told:
            # It goes behind the waiting partitions: a leader cuts an answer that is too large.
            del places[one.where]
            if one.next_offset < stops[one.where]:
                places[one.where] = one.next_offset
                yield one
            else:
                stop = stops.pop(one.where)
                self._keep(one, stop)
                yield one.before(stop)

    def _kept(self, places: Mapping[SourcePartition, int]) -> list[Fetched]:
        """Return kept answers for ranges. Drop the answer for a range that begins elsewhere."""
        behind = self.behind or {}
        known = [behind.pop(where) for where in places if where in behind]
        return [one for one in known if one.offset == places[one.where]]

    def _keep(self, one: Fetched, stop: int) -> None:
        """Keep an answer's part behind its range, unless the total gets too large."""
        if self.behind is not None and one.next_offset > stop:
            kept = sum(sum(other.sizes) for other in self.behind.values())
            if kept + sum(one.sizes) <= _BEHIND_BYTES:
                self.behind[one.where] = one.behind(stop)

    def _fetched(
        self,
        connections: Connections,
        places: Mapping[SourcePartition, int],
        portions: Mapping[SourcePartition, int],
        bound: Bound,
        wait_ms: int,
    ) -> list[Fetched]:
        """Return the answers of the leaders that answer, perhaps none."""
        leaders = connections.leaders
        told = connections.run(
            leaders.fetch(
                places,
                limit_s=bound.left_s,
                wait_ms=wait_ms,
                partition_bytes=portions,
                most_bytes=_REQUEST_BYTES,
                is_committed=self.is_committed,
                rack=os.environ.get(RACK, ""),
            ),
            bound,
        )
        cut = [OutputPartition(*where) for where, one in told.items() if one.is_out_of_range]
        if not cut:
            return [*told.values()]
        ends = connections.run(leaders.ends(cut), bound)
        for where, begins in connections.run(leaders.offsets(cut, EARLIEST), bound).items():
            source = SourcePartition(*where)
            if begins > (wanted := places[source]):
                if not self.passes_deleted:
                    raise LogRangeError(f"{where} begins at offset {begins}, and not at {wanted}")
                told[source] = replace(told[source], next_offset=begins)
            elif (end := ends.get(where, wanted)) < wanted:
                # Replicated records survive a change of leaders, unless it is an unclean one.
                raise LogRangeError(f"{where} ends at offset {end}, before {wanted}")
        return list(told.values())


class _Portions:
    """How many bytes are asked of partitions: about as many as their ranges have.

    What a leader sends behind a range is sent again for the next one, unless it is kept.
    """

    def __init__(self, reader: Reader, stops: Mapping[SourcePartition, int]) -> None:
        self._reader = reader
        self._stops = stops
        self._doublings = dict.fromkeys(stops, 0)

    def of(self, places: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """Return the bytes for the unread part of each partition."""
        found = {}
        for where, place in places.items():
            offset_bytes, batch_bytes = self._reader.packed.get(where.topic, (0.0, _FIRST_BYTES))
            most = int((self._stops[where] - place) * offset_bytes * _MORE) + batch_bytes
            found[where] = min(most << self._doublings[where], self._reader.partition_bytes)
        return found

    def learn(self, told: Collection[Fetched]) -> list[Fetched]:
        """Note how large batches were, and return the answers with something new."""
        for topic in {one.where.topic for one in told if one.sizes}:
            of_topic = [one for one in told if one.where.topic == topic and one.sizes]
            offsets = sum(one.next_offset - one.offset for one in of_topic)
            largest = max(max(one.sizes) for one in of_topic)
            mean = sum(sum(one.sizes) for one in of_topic) / max(1, offsets)
            self._reader.packed[topic] = mean, largest
        some = []
        for one in told:
            if one.next_offset > one.offset:
                some.append(one)
                self._doublings[one.where] = 0
            elif one.last_stable > one.offset:
                # Its batch is larger and was cut off, or it had to wait for its turn.
                self._doublings[one.where] = min(self._doublings[one.where] + 1, _MOST_DOUBLINGS)
        return some


class _Silence:
    """How long the partitions that are read have been silent."""

    def __init__(self, reader: Reader, partitions: Iterable[SourcePartition]) -> None:
        self._reader = reader
        self._since_s = dict.fromkeys(partitions, time.monotonic())
        self.failed: UnansweredError | None = None

    def bound(self, left: Iterable[SourcePartition]) -> Bound:
        """Return how long questions about partitions may take now."""
        since_s = min(self._since_s[where] for where in left)
        return Bound(since_s + self._reader.patience_s, self._reader.is_stopping)

    def ended(self, partitions: Iterable[SourcePartition]) -> None:
        """Note that the leaders of these partitions sent something."""
        self._since_s |= dict.fromkeys(partitions, time.monotonic())

    def look(self, left: Collection[SourcePartition], why: str, *, is_over: bool) -> None:
        """Note a failure if patience is over for any partition, or for all."""
        longest_s = self._reader.patience_s
        until_s = time.monotonic() - longest_s
        silent = [where for where in left if self._since_s[where] <= until_s]
        if silent or is_over:
            unread = f"not all of {_named(silent or left)} is read in {longest_s:g} s"
            self.failed = UnansweredError(f"{unread}: {why}")

    def end_round(self, seconds: float) -> None:
        """Take note that what had come was taken, and nobody asked for so long meanwhile.

        Raises:
            UnansweredError: Patience was over for some before that.
        """
        if self.failed is not None:
            raise self.failed
        self._since_s = {where: since_s + seconds for where, since_s in self._since_s.items()}


def _named(partitions: Collection[SourcePartition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))

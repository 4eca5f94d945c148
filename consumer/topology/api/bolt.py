"""Bolts, which users write, and the moment at which a batch runs them.

A moment has the batch's time, the watermark and the ticks that are due. All of it follows from what
is on disk before the batch begins, so a repeated batch has the same ticks and the same watermark.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, overload

from sequitur.consumer.topology.api.tuple import (
    DEFAULT_STREAM,
    SYSTEM_COMPONENT,
    TRANSACTION_FIELD,
    Stream,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sequitur.consumer.topology.api.collector import BasicOutputCollector, OutputCollector
    from sequitur.consumer.topology.api.tuple import Tuple


class BaseBolt(ABC):  # noqa: B024 - each kind of bolt has a `process` of its own
    """Base of all bolts.

    Each task unpickles its own copy. The engine calls `prepare` once for each copy. In each batch
    it calls `process` for each tuple, then `finish_batch`. It calls `cleanup` at the end. A copy
    usually serves many batches, but that is not promised: see `snapshot`. A tuple that is neither
    acked nor failed by the end of `finish_batch` fails as `never-acked`. An exception from
    `process` fails its tuple.

    Attributes:
        fields: Fields of the default stream.
        streams: Fields of each further stream, by the stream's name.
        direct_streams: The streams whose emitter names the task.
        must_be_read: The streams that a topology must read, if the bolt has them.
    """

    fields: Sequence[str] = ()
    streams: Mapping[str, Sequence[str]] = MappingProxyType({})
    direct_streams: Sequence[str] = ()
    must_be_read: Sequence[str] = ()

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Get ready.

        Args:
            context: Where it runs.
            collector: What to emit, ack and fail by.
        """
        self.context = context
        self.collector = collector

    def finish_batch(self) -> None:  # noqa: B027 - most bolts hold nothing
        """Called after the batch's last tuple: ack and release all that the bolt holds.

        If it raises, all events of the batch fail that the task was given, acked or not.
        With `max_spout_pending` also in between, each time that so many trees are open.
        """

    def cleanup(self) -> None:  # noqa: B027 - most bolts acquire nothing
        """Release what `prepare` acquired."""

    def snapshot(self) -> Any:
        """Return the state that the next batch of this task begins with, or None.

        The next batch may run in another process, with another copy of the bolt.
        It is pickled and kept with the batch's verdicts. State that a failed tree has changed stays
        changed.
        """
        return None

    def restore(self, state: Any) -> None:  # noqa: B027 - most bolts keep nothing
        """Take back what `snapshot` returned in the batch before. Called after `prepare`.

        Not where the copy that gave it goes on.
        """

    def declared(self) -> dict[str, tuple[str, ...]]:
        """Fields by stream."""
        found = {name: tuple(fields) for name, fields in self.streams.items()}
        if self.fields or not found:
            found.setdefault(DEFAULT_STREAM, tuple(self.fields))
        return found


class Bolt(BaseBolt):
    """A bolt that anchors and acks by itself.

    ::

        class Split(Bolt):
            fields = ("word",)

            def prepare(self, context, collector):
                self.collector = collector

            def process(self, tuple):
                for word in tuple["value"].decode().split():
                    self.collector.emit((word,), anchors=tuple)
                self.collector.ack(tuple)
    """

    @abstractmethod
    def process(self, tuple: Tuple, /) -> Any:  # noqa: A002 - the field's word
        """Process a tuple. May be `async` where the bolt is declared with `concurrency`.

        What it yields, or returns in a list, is emitted, anchored to the tuple.
        """


class BatchBolt(Bolt):
    """A bolt that holds tuples across calls, and acks them when its batch is finished.

    Each batch has a copy of its own, which `prepare` begins with nothing. Make expensive things,
    such as a connection, in a `Bolt` or `BasicBolt`: these live from batch to batch.

    ::

        class Total(BatchBolt):
            fields = ("total",)

            def prepare(self, context, collector):
                self.collector, self.tuples = collector, []

            def process(self, tuple):
                self.tuples.append(tuple)

            def finish_batch(self):
                total = sum(tuple["count"] for tuple in self.tuples)
                self.collector.emit((total,), anchors=self.tuples)
                for tuple in self.tuples:
                    self.collector.ack(tuple)
    """

    @abstractmethod
    def finish_batch(self) -> None:
        """Called after the batch's last tuple: emit results, ack and forget the tuples.

        With `max_spout_pending` also in between, each time that so many trees are open.
        """


class BasicBolt(BaseBolt):
    """A bolt whose tuples are anchored to its input, which is acked when `process` returns.

    An exception fails the input.

    ::

        from collections import Counter


        class Count(BasicBolt):
            fields = ("word", "count")

            def __init__(self):
                self.counts = Counter()

            def process(self, tuple, collector):
                self.counts[tuple["word"]] += 1
                yield tuple["word"], self.counts[tuple["word"]]

            def snapshot(self):  # without it the next batch may begin with no counts
                return self.counts

            def restore(self, state):
                self.counts = state
    """

    @abstractmethod
    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> Any:  # noqa: A002
        """Process a tuple. What it yields, or emits by the collector, is anchored to it."""


class FunctionBolt(Bolt):
    """A function as a bolt: its yielded values are anchored to its input, which is then acked.

    Args:
        function: Gets a tuple. Yields values, or returns None, a list or an iterator of them.
        fields: Fields of the values that it yields.
        streams: Fields of further streams, see `To`.
        direct_streams: Further streams whose emitter names the task.
    """

    def __init__(
        self,
        function: Callable[[Any], Iterable[Any] | None],
        fields: Sequence[str] = ("value",),
        streams: Mapping[str, Sequence[str]] | None = None,
        direct_streams: Sequence[str] = (),
        *,
        is_decorator: bool = False,
    ) -> None:
        self.function = function
        self.fields = tuple(fields)
        self.streams = dict(streams or {})
        self.direct_streams = tuple(direct_streams)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._global = getattr(function, "__qualname__", None) if is_decorator else None

    def __call__(self, tuple: Any) -> Any:  # noqa: A002
        """Return the function itself, for tests of it."""
        return self.function(tuple)

    def process(self, tuple: Tuple, /) -> Any:  # noqa: A002
        """The executor does not call this, but the function itself."""
        return self.function(tuple)

    def __reduce__(self) -> Any:
        if self._global is not None:  # its name stands for it, and not for the function
            return self._global
        return FunctionBolt, (self.function, self.fields, self.streams, self.direct_streams)


@overload
def bolt(function: Callable[[Any], Any], /) -> FunctionBolt: ...


@overload
def bolt(
    *,
    fields: Sequence[str] = ...,
    streams: Mapping[str, Sequence[str]] | None = ...,
    direct_streams: Sequence[str] = ...,
) -> Callable[[Callable[[Any], Any]], FunctionBolt]: ...


def bolt(
    function: Callable[[Any], Any] | None = None,
    /,
    *,
    fields: Sequence[str] = ("value",),
    streams: Mapping[str, Sequence[str]] | None = None,
    direct_streams: Sequence[str] = (),
) -> Any:
    """Make a function a bolt: `@bolt`, or `@bolt(fields=("word", "count"))`.

    ::

        @bolt(fields=("word",))
        def split(sentence):
            yield from sentence.value.decode().split()

    Args:
        function: Gets a tuple and yields values: a tuple or list in the order of the fields, a
            mapping by field, or the value itself if there is one field.
        fields: Fields of the default stream.
        streams: Fields of further streams. Yield `To(stream, values)` for these.
        direct_streams: Further streams whose emitter names the task. Yield `To(stream, values,
            task)` for these.
    """

    def made(decorated: Callable[[Any], Any]) -> FunctionBolt:
        return FunctionBolt(decorated, fields, streams, direct_streams, is_decorator=True)

    return made if function is None else made(function)


@dataclass(frozen=True, slots=True)
class To:
    """A value that a function yields for a stream other than its default one.

    Attributes:
        stream: The stream.
        values: The values.
        task: The task, for a direct stream.
    """

    stream: str
    values: Any
    task: int | None = None


@dataclass(slots=True)
class TopologyContext:
    """Where a bolt runs.

    Attributes:
        topology: Name of the topology.
        component: The bolt's id.
        task: Number of this task among the component's, from 0.
        tasks: How many tasks the component has.
        config: The topology's configuration.
        task_counts: How many tasks each component has, this one included.
        now_ms: The batch's time, epoch ms. This and the watermark are new in each batch.
        watermark_ms: All events up to this event time are done. None: not known yet. After a drain
            it is for windows the end of the last one that was closed.
    """

    topology: str
    component: str
    task: int
    tasks: int
    config: Mapping[str, Any]
    task_counts: Mapping[str, int] = field(default_factory=dict)
    now_ms: int = 0
    watermark_ms: int | None = None

    @property
    def logger(self) -> logging.Logger:
        """A logger of this task: `sequitur.topology.<topology>.<component>.<task>`."""
        return logging.getLogger(f"sequitur.topology.{self.topology}.{self.component}.{self.task}")


def is_async(found: BaseBolt) -> bool:
    call: Any = found
    target = call.function if isinstance(found, FunctionBolt) else call.process
    return inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)


def keeps_of_batch(found: BaseBolt) -> bool:
    """Return whether a bolt may keep something of a batch until its end."""
    kind = type(found)
    return kind.finish_batch is not BaseBolt.finish_batch or kind.snapshot is not BaseBolt.snapshot


def runs_later(method: Any) -> bool:
    """Return whether a call of a method runs nothing: it returns a coroutine or a generator."""
    kinds = (
        inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction
    )  # fmt: skip
    return any(is_kind(method) for is_kind in kinds)


TICK_STREAM: Final = "__tick"
TICK: Final = Stream(SYSTEM_COMPONENT, TICK_STREAM, ("interval_s",))
"""The stream of tick tuples, by Storm's names."""
BATCH_TICK: Final = Stream(SYSTEM_COMPONENT, TICK_STREAM, (TRANSACTION_FIELD, *TICK.fields))
"""The same in a transactional topology."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a batch runs."""

    number: int = 0
    now_ms: int = 0  # its time, epoch ms
    # every event up to this event time is done; None as long as none is known
    watermark_ms: int | None = None
    # the bolts that get a tick, and their intervals in ms
    ticks: Mapping[str, int] = field(default_factory=dict)
    # at the end of a run: only failed events are tried again, and bolts without input do not run
    only_retries: bool = False
    # every event up to this event time comes in this batch, or came before; None: none is known
    reached_ms: int | None = None
    # at the end of a drain: timers of bolts that drain are called, though their time has not come
    closes: bool = False
    # event times up to which earlier drains have called them, by bolt
    closed_ms: Mapping[str, int] = field(default_factory=dict)

    def watermark_of(self, bolt: str, delay_ms: int) -> int | None:
        """Return what a bolt takes for the watermark: what it closed in a drain stays closed."""
        watermark_ms = None if self.watermark_ms is None else self.watermark_ms - delay_ms
        known = [one for one in (watermark_ms, self.closed_ms.get(bolt)) if one is not None]
        return max(known, default=None)


def ticks_due(
    intervals_ms: Mapping[str, int], before_ms: int | None, now_ms: int
) -> dict[str, int]:
    """Return the bolts that get a tick, with their intervals: one tick each, however late it is.

    Ticks are due at multiples of the interval.
    """
    if before_ms is None:
        return {}
    return {
        bolt: interval_ms
        for bolt, interval_ms in intervals_ms.items()
        if now_ms // interval_ms > before_ms // interval_ms
    }


def next_tick_ms(intervals_ms: Mapping[str, int], before_ms: int | None) -> int | None:
    """Return when the next tick is due; None if no bolt has ticks, or before the first batch."""
    if before_ms is None or not intervals_ms:
        return None
    return min((before_ms // each + 1) * each for each in intervals_ms.values())


def watermark_after(
    before_ms: int | None, reached_ms: int | None, waiting_ms: int | None
) -> int | None:
    """Return the watermark after a batch: every event up to it is done. It never goes back."""
    if reached_ms is not None and waiting_ms is not None:
        reached_ms = min(reached_ms, waiting_ms - 1)
    known = [one for one in (before_ms, reached_ms) if one is not None]
    return max(known, default=None)

"""What a call of a bolt yields or returns is emitted, by one rule for all kinds; or refused."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sequitur.consumer.topology import BaseBolt, BasicBolt, Bolt, TopologyBuilder, TopologyTester
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class Pair(NamedTuple):
    """A value that is a tuple."""

    first: str
    second: str


def yields(_: Any) -> Iterator[Any]:
    yield ("a",)
    yield ("b",)


async def yields_async(_: Any) -> AsyncIterator[Any]:
    yield ("a",)
    yield ("b",)


async def returns_async(_: Any) -> Any:
    return ["a", ("b",)]


def wraps_async(given: Any) -> Any:
    """A plain function around a coroutine, as a decorator may leave one."""
    return returns_async(given)


def returns_list(_: Any) -> Any:
    return ["a", ("b",)]


def returns_iterator(_: Any) -> Any:
    return map(str, "ab")


CALLS = [yields, yields_async, returns_async, wraps_async, returns_list, returns_iterator]
ASYNC = [yields_async, returns_async]


class Basic(BasicBolt):
    """Returns what a call gives."""

    fields = ("value",)

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def process(self, tuple: Any, collector: Any) -> Any:  # noqa: A002
        del collector
        return self.call(tuple)


def plain(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return call


class Acking(Bolt):
    """Returns what a call gives; acks at the end of the batch."""

    fields = ("value",)

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def process(self, tuple: Any) -> Any:  # noqa: A002
        returned = self.call(tuple)
        self.held = tuple
        return returned

    def finish_batch(self) -> None:
        self.collector.ack(self.held)


class AsyncBasic(BasicBolt):
    """Its `process` is a coroutine."""

    fields = ("value",)

    async def process(self, tuple: Any, collector: Any) -> Any:  # noqa: A002
        del collector
        return await returns_async(tuple)


class YieldsAndAcks(Bolt):
    """Yields, then acks; or, with `late`, acks and then yields."""

    fields = ("value",)

    def __init__(self, *, late: bool = False) -> None:
        self.late = late

    def process(self, tuple: Any) -> Iterator[Any]:  # noqa: A002
        yield ("a",)
        if self.late:
            self.collector.ack(tuple)
        yield ("b",)
        if not self.late:
            self.collector.ack(tuple)


class EmitsAndYields(BasicBolt):
    """Emits and yields by turns."""

    fields = ("value",)

    def process(self, tuple: Any, collector: Any) -> Any:  # noqa: A002
        del tuple
        collector.emit(("a",))
        yield ("b",)
        collector.emit(("c",))


class ReturnsWhatEmitReturned(BasicBolt):
    """Ends in `return collector.emit(...)`."""

    fields = ("value",)

    def process(self, tuple: Any, collector: Any) -> Any:  # noqa: A002
        del tuple
        return [*collector.emit_many([("a",), ("b",)]), *collector.emit(("c",))]


def run_with(given: BaseBolt | Callable[[Any], Any], concurrency: int = 1) -> TopologyTester:
    """A tester of a topology of this bolt, that has run one event."""
    builder = TopologyBuilder("returns")
    builder.set_spout("events")
    builder.set_bolt("bolt", given, concurrency=concurrency).local_grouping("events")
    builder.set_output("out", key=None, value="value").local_grouping("bolt")
    tester = TopologyTester(builder.build())
    tester.run([("key", "event")])
    return tester


def why_dead(tester: TopologyTester) -> str:
    """Why its one event is a dead letter, once all attempts are over."""
    tester.retry_all()
    (letter,) = tester.dead_letters
    return letter.detail


def values(tester: TopologyTester) -> list[bytes | None]:
    return [value for _, value in tester.records("out")]


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("kind", [plain, Basic, Acking])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_all_that_is_yielded_or_listed_goes_out(
    call: Callable[[Any], Any], kind: Callable[[Any], Any], concurrency: int
) -> None:
    given = kind(call)
    if kind is plain and call in ASYNC:
        concurrency = 2  # what is async has to say so
    tester = run_with(given, concurrency)
    assert values(tester) == [b"a", b"b"]
    assert (len(tester.acked), tester.failed) == (1, [])


def test_an_async_basic_bolt_emits_what_it_returns() -> None:
    assert values(run_with(AsyncBasic(), 2)) == [b"a", b"b"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_bolt_that_yields_acks_by_itself(concurrency: int) -> None:
    """What it yields joins the tree, which its ack ends."""
    tester = run_with(YieldsAndAcks(), concurrency)
    assert values(tester) == [b"a", b"b"]
    assert len(tester.acked) == 1


@pytest.mark.parametrize("concurrency", [1, 2])
def test_nothing_is_anchored_to_a_tuple_that_is_acked(concurrency: int) -> None:
    """The late value fails the event."""
    tester = run_with(YieldsAndAcks(late=True), concurrency)
    assert values(tester) == []
    assert "acked already" in why_dead(tester)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_is_emitted_and_yielded_by_turns_keeps_its_order(concurrency: int) -> None:
    """Also where calls run side by side."""
    assert values(run_with(EmitsAndYields(), concurrency)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_emit_returned_is_not_emitted_again(concurrency: int) -> None:
    assert values(run_with(ReturnsWhatEmitReturned(), concurrency)) == [b"a", b"b", b"c"]


def gives(value: Any, _: Any) -> Any:
    return value


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("kind", [plain, Basic])
@pytest.mark.parametrize(
    "value",
    ["text", b"bytes", {"value": 1}, ("a",), Pair("a", "b"), 7, {"a"}],
    ids=["str", "bytes", "mapping", "tuple", "namedtuple", "number", "set"],
)
def test_what_may_be_one_value_or_several_is_refused_by_name(
    value: Any, kind: Callable[[Any], Any], concurrency: int
) -> None:
    tester = run_with(kind(functools.partial(gives, value)), concurrency)
    assert values(tester) == []
    detail = why_dead(tester)
    assert "EmitError: bolt 'bolt' returned" in detail
    assert repr(value)[:20] in detail
    assert "yield the values to emit, or return a list of them" in detail


class AcksThenRaises(Bolt):
    """Acks `bad` and raises, keeps `hold` until the next tuple."""

    fields = ("value",)

    def __init__(self) -> None:
        self.held: list[Any] = []

    def process(self, tuple: Any) -> None:  # noqa: A002
        """Ack, raise, hold or emit, by the value."""
        if tuple.value == b"bad":
            self.collector.ack(tuple)
            raise RuntimeError("after the ack")
        self.held.append(tuple)
        if tuple.value != b"hold":
            for one in self.held:
                self.collector.emit((one.value,), anchors=one)
                self.collector.ack(one)
            self.held = []


def test_a_copy_that_holds_a_tuple_is_not_kept_though_another_tuple_was_acked_and_failed() -> None:
    """An ack and a failure of one tuple count once."""
    builder = TopologyBuilder("holds")
    builder.set_spout("events")
    builder.set_bolt("bolt", AcksThenRaises()).local_grouping("events")
    builder.set_output("out", key=None, value="value").local_grouping("bolt")
    tester = TopologyTester(builder.build())
    tester.run([("a", "bad"), ("b", "hold")])
    tester.run([("c", "innocent")])
    assert values(tester) == [b"innocent"]


class Misordered(Bolt):
    """Emits in Storm's order of arguments."""

    fields = ("value",)

    def __init__(self, order: str) -> None:
        self.order = order

    def process(self, tuple: Any) -> None:  # noqa: A002
        emit: Any = self.collector.emit
        if self.order == "anchor, values":
            emit(tuple, ("a",))
        elif self.order == "anchors, values":
            emit([tuple], ("a",))
        else:
            emit("default", tuple, ("a",))


@pytest.mark.parametrize("order", ["anchor, values", "anchors, values", "stream, anchor, values"])
def test_emit_in_storms_order_of_arguments_says_so(order: str) -> None:
    """The anchors would be taken for values."""
    detail = why_dead(run_with(Misordered(order)))
    assert "the order is emit(values, anchors, stream), and not Storm's" in detail


class BasicMisordered(BasicBolt):
    """Likewise."""

    fields = ("value",)

    def process(self, tuple: Any, collector: Any) -> None:  # noqa: A002
        del tuple
        collector.emit("default", ("a",))


def test_a_basic_bolts_emit_says_so_too() -> None:
    """The stream would be taken for values."""
    assert "not Storm's emit(stream, values)" in why_dead(run_with(BasicMisordered()))


async def _never_run(self: Any, *_: Any) -> None:
    del self


def _never_iterated(self: Any, *_: Any) -> Iterator[None]:
    del self
    yield


@pytest.mark.parametrize("method", ["prepare", "finish_batch", "cleanup", "snapshot", "restore"])
@pytest.mark.parametrize("later", [_never_run, _never_iterated], ids=["coroutine", "generator"])
def test_a_lifecycle_method_that_would_never_run_is_refused(method: str, later: Any) -> None:
    """Its call would only make what nobody runs."""
    lazy = type("Lazy", (Basic,), {method: later})
    with pytest.raises(TopologyBuildError, match=f"its {method} is a coroutine or a generator"):
        TopologyBuilder("lazy").set_bolt("bolt", lazy(returns_list))

"""An error's text is whatever a bolt puts there: it ends no job, and is kept as UTF-8."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    Bolt,
    Committer,
    CustomStreamGrouping,
    OrderedStreamSpout,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.step.batch import PendingEvent
from sequitur.consumer.topology.tester.in_memory import InMemoryBatch
from sequitur.errors import FailBatch
from sequitur.testing import ReorderTester

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.consumer.topology import Topology, TransactionalTopology, Tuple

HALF: Final = "half \ud83d"
_SETTINGS: Final = ReorderSettings(
    input_topics=["in"], output_topic="out", checkpoint="none", event_time="json:at", delay="0 s"
)
_PROCESS: Final = ProcessSettings(retry_delay="1 s", max_attempts=2)
_AT_MS: Final = 1_700_000_000_000


class OddlyNamedError(Exception):
    pass


OddlyNamedError.__qualname__ = HALF


class SilentError(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


class Text(str):
    """A text of a library's, which cannot be pickled and encodes to what it likes."""

    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"\xff"

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError("a text that belongs to a document")


class Thawing:
    """A value that can be pickled, and raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return _raise_half, ()


class Freezing:
    """A value that raises when it is pickled."""

    def __reduce__(self) -> Any:
        raise SilentError


class Chooses(CustomStreamGrouping):
    """Raises for the value that says so."""

    def choose_tasks(self, task: int, values: Any) -> Sequence[int]:
        del task
        if values[0] == "grouping":
            raise ValueError(HALF)
        return (0,)


def _raise_half() -> None:
    raise ValueError(HALF)


def _noted() -> Exception:
    error = ValueError("noted")
    error.add_note(HALF)
    return error


def _oddly_noted() -> Exception:
    error = ValueError("oddly noted")
    error.__notes__ = SilentError()  # type: ignore[assignment]
    return error


def _caused() -> Exception:
    error = ValueError("caused")
    error.__cause__ = KeyError(HALF)
    return error


def _deep() -> Exception:
    error: Exception = ValueError(HALF)
    for _ in range(3000):
        error = ExceptionGroup("a group", [error])
    return error


def _in_an_odd_file() -> None:
    exec(compile("raise ValueError('odd file')", "/tmp/\udcff.py", "exec"))


RAISED: Final[dict[str, Callable[[], BaseException]]] = {
    "text": lambda: ValueError(f"unknown name: {HALF}"),
    "name": OddlyNamedError,
    "note": _noted,
    "odd notes": _oddly_noted,
    "cause": _caused,
    "group": lambda: ExceptionGroup(HALF, [ValueError(HALF)]),
    "deep group": _deep,
    "no text": SilentError,
    "syntax": lambda: SyntaxError(HALF, (HALF, 1, 1, HALF)),
    "system exit": lambda: SystemExit(HALF),
    "long": lambda: ValueError(HALF * 100_000),
}
FAILED: Final[dict[str, Any]] = {
    "why": f"unknown name: {HALF}",
    "why, of a library": Text(HALF),
    "why, an error": ValueError(HALF),
    "why, bytes": b"\xff",
    "why, long": HALF * 100_000,
}
EMITTED: Final[dict[str, Any]] = {
    "value": HALF,
    "nested": {"a": [(HALF,)]},
    "nested name": {HALF: 1},
    "unpickled": Thawing(),
    "pickled": Freezing(),
    "grouping": "grouping",
    "encode": {1, 2},
}
HEADERS: Final[dict[str, Any]] = {"header name": [(HALF, b"1")], "header": [("a", HALF)]}
WAYS: Final = (*RAISED, *FAILED, *EMITTED, *HEADERS, "file")


class Fails(Bolt):
    """Fails in the way that the event names."""

    fields = ("value", "headers")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        way = json.loads(tuple["value"])["way"]
        if way in RAISED:
            error = RAISED[way]()
            raise error
        if way == "file":
            _in_an_odd_file()
        if way in FAILED:
            self.collector.fail(tuple, FAILED[way])
            return
        self.collector.emit((EMITTED.get(way, way), HEADERS.get(way)), tuple)
        self.collector.ack(tuple)


class PassesOn(Bolt):
    fields = ("value", "headers")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.emit(tuple.values, tuple)
        self.collector.ack(tuple)


def _encode(value: Any) -> str:
    return HALF if isinstance(value, set) else json.dumps(value, ensure_ascii=False)


def _topology(concurrency: int) -> Topology:
    builder = TopologyBuilder("texts")
    builder.set_spout("events")
    builder.set_bolt("fails", Fails(), concurrency=concurrency).local_grouping("events")
    builder.set_bolt("on", PassesOn(), 2).custom_grouping("fails", Chooses())
    builder.set_output("out", key=None, headers="headers", encode=_encode).local_grouping("on")
    return builder.build()


def _rows() -> list[tuple[str, str]]:
    ways = [*WAYS, "good"]
    return [(way, json.dumps({"at": _AT_MS + at, "way": way})) for at, way in enumerate(ways)]


def _job(topology: Topology) -> tuple[list[bytes | None], dict[str, list[str]]]:
    """Return the values that a job has written, and the last lines of its dead letters by key."""
    with ReorderTester(_SETTINGS, topology, process=_PROCESS, now_ms=_AT_MS + 10_000) as job:
        job.run([{"key": key, "value": value} for key, value in _rows()])
        job.drain()
        for _ in range(3):
            job.advance(2)
        letters: dict[str, list[str]] = {}
        for one in job.records("out.dead-letter"):
            detail = one.header("sequitur-dlq-traceback") or b""
            letters.setdefault((one.key or b"").decode(), []).append(detail.decode())
        return [one.value for one in job.records("out")], letters


def _tester(topology: Topology) -> tuple[list[bytes | None], dict[str, list[str]]]:
    tester = TopologyTester(topology, _PROCESS, partitions=1)
    tester.run(_rows())
    tester.retry_all()
    letters: dict[str, list[str]] = {}
    for one in tester.dead_letters:
        letters.setdefault((one.event.key or b"").decode(), []).append(one.detail)
    return [value for _, value in tester.records("out")], letters


@pytest.mark.promise("process-text-no-utf-8")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_event_is_dead_lettered_whatever_the_text_of_its_error(concurrency: int) -> None:
    """Each event once; the others go on; and the tester says what the job says."""
    written, letters = _job(_topology(concurrency))
    assert written == [b"good"]
    assert letters.keys() == {*WAYS}
    assert {key: len(found) for key, found in letters.items()} == dict.fromkeys(WAYS, 1)
    assert letters["text"][0].rstrip().endswith("ValueError: unknown name: half \\ud83d")
    assert letters["why"] == ["unknown name: half \\ud83d"]
    assert letters["why, an error"] == ["half \\ud83d"]
    for way in ("value", "nested", "nested name", "header name", "header", "encode"):
        assert "EmitError: output 'out': " in letters[way][0], way
        assert "half a surrogate pair" in letters[way][0], way
    tested, letters_of_tester = _tester(_topology(concurrency))
    assert (tested, _last_lines(letters_of_tester)) == (written, _last_lines(letters))


def _last_lines(letters: dict[str, list[str]]) -> dict[str, str]:
    return {key: one.rstrip().splitlines()[-1] for key, (one,) in letters.items()}


def test_a_tester_takes_no_text_that_a_job_could_not_write() -> None:
    """A text that slips by fails the tests of a topology, too, and not its job alone."""
    batch: Any = object.__new__(InMemoryBatch)
    failed = PendingEvent((), 1, None, "exception", HALF, "bolt")
    for write in (batch.write_dead, batch.write_waiting):
        assert write([failed._replace(detail="text")]) == [failed._replace(detail="text")]
        with pytest.raises(UnicodeEncodeError):
            write([failed])


class FailsOf(BaseTransactionalBolt):
    """Raises for an event that says so."""

    fields = ("tx", "value")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        way = json.loads(tuple["value"])["way"]
        if way in RAISED:
            error = RAISED[way]()
            raise error
        self.collector.emit((tuple[0], way))


class FailsOnce(BaseTransactionalBolt, Committer):
    """Fails the first try at its batch, in the commit phase."""

    fields = ("tx", "value")
    fails: ClassVar[list[type[Exception]]] = []

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.emit(tuple.values)

    def finish_batch(self) -> None:
        if self.fails:
            raise self.fails.pop()(HALF)


def _transactional() -> TransactionalTopology:
    builder = TransactionalTopologyBuilder("texts", "spout", OrderedStreamSpout())
    builder.set_bolt("fails", FailsOf()).local_grouping("spout")
    builder.set_committer_bolt("once", FailsOnce()).local_grouping("fails")
    builder.set_output("out", key=None).local_grouping("once")
    FailsOnce.fails = [FailBatch, ValueError]
    return builder.build()


@pytest.mark.promise("process-text-no-utf-8")
def test_event_of_a_transaction_is_dead_lettered_whatever_the_text() -> None:
    ways = ["text", "name", "no text"]
    rows = [(way, json.dumps({"at": _AT_MS, "way": way})) for way in (*ways, "good")]
    tester = TransactionTester(_transactional(), _PROCESS)
    tester.run(rows)
    tester.retry_all()
    assert FailsOnce.fails == []
    with ReorderTester(_SETTINGS, _transactional(), process=_PROCESS, now_ms=_AT_MS + 9) as job:
        job.run([{"key": key, "value": value} for key, value in rows])
        job.drain()
        for _ in range(3):
            job.advance(2)
        letters = [(one.key or b"").decode() for one in job.records("out.dead-letter")]
        assert [one.value for one in job.records("out")] == [b"good"]
    assert sorted(letters) == sorted(ways)
    assert sorted((one.event.key or b"").decode() for one in tester.dead_letters) == sorted(ways)

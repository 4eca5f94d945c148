"""The samples in docstrings of public names: each main class has one, and they do what they say."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import re
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

from sequitur import Persisted
from tests.house.public_names import FACES, reference_pages, samples
from tests.support.fake_wire import FakeWire
from tests.support.producers import use
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAIN: Final = (
    *("IdempotentProducer", "ProducerSettings", "KafkaSettings", "Ticket"),
    *("ReorderSettings", "EventTimeSpec", "reorder", "OrderedStep", "ExactlyOnceKafka"),
    *("BasicBolt", "Bolt", "BatchBolt", "bolt", "TopologyBuilder", "ProcessSettings", "EventHook"),
    *("BaseTransactionalBolt", "Committer", "TransactionalTopologyBuilder", "SQLStore"),
    *("Subscription", "ReorderTester", "TopologyTester", "TransactionTester"),
)
_MODULE: Final = "sequitur_samples"

pytestmark = pytest.mark.xdist_group("reference")  # one process reads all docstrings


@functools.cache
def _samples() -> Mapping[str, list[str]]:
    return samples()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All public names, in a module, so that what samples make there can be pickled."""
    module = ModuleType(_MODULE)
    monkeypatch.setitem(sys.modules, _MODULE, module)
    for face in FACES:
        found = import_module(face)
        vars(module).update({name: getattr(found, name) for name in found.__all__})
    return vars(module)


def _run(names: dict[str, Any], *several: str) -> None:
    for name in several:
        for sample in _samples()[name]:
            code = compile(sample, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            assert not code.co_flags & inspect.CO_COROUTINE
            exec(code, names)


async def _awaited(names: dict[str, Any], sample: str) -> None:
    code = compile(sample, "sample", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)


@pytest.mark.parametrize("name", _MAIN)
def test_a_main_class_has_a_sample(name: str) -> None:
    assert _samples()[name]
    for sample in _samples()[name]:
        compile(sample, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_a_page_begins_with_links_to_its_names() -> None:
    for name, page in reference_pages().items():
        head = page.partition("\n## ")[0]
        linked = set(re.findall(r"\[`(\w+)`\]", head))
        title = r"^### `(\w+)`" if "\n### " in page else r"^## `(\w+)`"
        titles = re.findall(title, page, re.MULTILINE)
        assert linked == set(titles), name
        assert len(titles) == len(linked), name


def test_the_samples_of_topologies_count_words(names: dict[str, Any]) -> None:
    _run(names, "Bolt", "BasicBolt", "bolt", "BatchBolt", "CustomStreamGrouping", "EventHook")
    _run(names, "TopologyBuilder", "TopologyTester", "ProcessSettings")
    names["tester"].close()


def test_the_samples_of_transactions_count(names: dict[str, Any], tmp_path: Path) -> None:
    names["store"] = names["SQLStore"](f"sqlite:///{tmp_path}/counts.db")
    _run(names, "BaseTransactionalBolt", "Committer", "TransactionalTopologyBuilder")
    _run(names, "TransactionTester", "MemoryTransactionalSpout", "SQLStore")
    names["tester"].close()


def test_the_samples_of_settings_are_accepted(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    _run(names, "ProducerSettings", "KafkaSettings", "ReorderSettings", "EventTimeSpec")
    _run(names, "parse_event_id")


def test_the_sample_of_the_reorder_tester_puts_rows_in_order(names: dict[str, Any]) -> None:
    _run(names, "ReorderTester")


async def test_the_samples_of_the_producer_send(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    wire = FakeWire()
    use(wire, monkeypatch)
    await asyncio.wait_for(_awaited(names, _samples()["IdempotentProducer"][0]), timeout=PATIENCE_S)
    assert names["persisted"] == Persisted(0, 0, "orders", names["persisted"].timestamp_ms)
    async with names["IdempotentProducer"]("broker-1:9092") as names["producer"]:
        await asyncio.wait_for(_awaited(names, _samples()["Ticket"][0]), timeout=PATIENCE_S)
    assert names["result"].persisted == 2
    assert [one.value for one in wire.records["orders", 0]] == [b"lamp", b"lamp", b"desk"]


@pytest.mark.parametrize("name", ["reorder", "OrderedStep", "ExactlyOnceKafka", "Subscription"])
def test_the_other_samples_call_what_is_there(names: dict[str, Any], name: str) -> None:
    """They need a broker or Spark: their names are checked, and the arguments of calls."""
    for call in (n for n in ast.walk(ast.parse(_samples()[name][0])) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id in names:
            words = {str(one.arg): None for one in call.keywords}
            called = names[call.func.id]
            if not hasattr(called, "model_fields"):
                inspect.signature(called).bind(*call.args, **words)

"""docs/managed-kafka.md names what is sent: each request, its version, and each setting."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, Final

from sequitur.kafka.metadata import NEEDED_VERSIONS
from tests.support.pages import rows_of, section
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PAGE: Final = "managed-kafka.md"
_PRODUCT: Final = ("producer", "consumer", "pipelines", "sequitur/kafka", "sequitur/cli")
_NAMES: Final = {"Offset": "ListOffsets", "DescribeShareGroup": "ShareGroupDescribe"}
"""Names of aiokafka's, and of ours, that are not Kafka's."""
_CALLS: Final = {
    "abort_transaction": {"EndTxn"},
    "begin_transaction": {"AddPartitionsToTxn"},
    "commit": {"OffsetCommit"},
    "commit_transaction": {"EndTxn"},
    "create_topics": {"CreateTopics"},
    "delete_consumer_groups": {"DeleteGroups"},
    "delete_records": {"DeleteRecords"},
    "describe_cluster": {"DescribeCluster"},
    "describe_configs": {"DescribeConfigs"},
    "describe_consumer_groups": {"DescribeGroups"},
    "describe_topics": {"Metadata"},
    "get_watermark_offsets": {"ListOffsets"},
    "init_transactions": {"InitProducerId"},
    "list_consumer_group_offsets": {"OffsetFetch"},
    "list_consumer_groups": {"ListGroups"},
    "list_offsets": {"ListOffsets"},
    "list_topics": {"Metadata"},
    "offsets_for_times": {"ListOffsets"},
    "subscribe": {"JoinGroup"},
}
"""Calls of librdkafka's clients, and the requests that they make."""
_OF_A_CLIENT: Final = re.compile(r"(_?admin|_?consumer|_?producer)$")
_NO_REQUEST: Final = frozenset({"let_go", "poll"})
"""Calls of admin clients that make none."""


@cache
def _sources() -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text())
        for folder in _PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def _calls() -> Iterator[ast.Call]:
    for tree in _sources().values():
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _requests() -> set[str]:
    """Return what the product asks brokers for, by Kafka's names."""
    found = set()
    for call in _calls():
        name = ast.unparse(call.func).rpartition(".")[2]
        if (made := re.fullmatch(r"([A-Z]\w+?)Request", name)) and name[0] != "_":
            found.add(_NAMES.get(made[1], made[1]))
        if isinstance(call.func, ast.Attribute) and _OF_A_CLIENT.search(
            ast.unparse(call.func.value)
        ):
            found |= _CALLS.get(call.func.attr, set())
    return found - {"HTTPBad"}


def _named(text: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", text))


def test_requests_of_every_part_are_those_that_are_checked() -> None:
    """With the versions that a broker is refused without."""
    rows = rows_of(section(_PAGE, "Check the requests that every part needs"))
    assert {row[0].strip("`"): int(row[1]) for row in rows} == dict(NEEDED_VERSIONS.values())


def test_each_request_is_on_the_page() -> None:
    """Those of the code, and no other."""
    every = {name for name, _ in NEEDED_VERSIONS.values()}
    rows = rows_of(section(_PAGE, "Check what your part sends besides"))
    besides = {name for row in rows for name in _named(row[1])}
    assert besides & every == set()
    assert every | besides == _requests()


def test_each_setting_that_is_read_is_on_the_page() -> None:
    """Of topics and brokers, as the two modules that read them have their names."""
    read = {
        text
        for name in ("admin.py", "record_format.py")
        for node in ast.walk(_sources()[ROOT / "sequitur" / "kafka" / name])
        if isinstance(node, ast.Constant) and isinstance(text := node.value, str)
        if re.fullmatch(r"[a-z]+(\.[a-z]+)+", text)
    }
    assert "producer.id.expiration.ms" in read
    rows = rows_of(section(_PAGE, "Check the settings"))
    named = {name for row in rows for name in _named(row[0])}
    untold = {row[0].strip("`") for row in rows if row[2].startswith("never read")}
    assert named - untold == read


def test_each_call_of_an_admin_client_is_known() -> None:
    """One that is new makes a request that the page has to name."""
    made = {
        call.func.attr
        for call in _calls()
        if isinstance(call.func, ast.Attribute)
        if re.search(r"\b_?admin$", ast.unparse(call.func.value))
    }
    assert "create_topics" in made
    assert made - _NO_REQUEST <= set(_CALLS)

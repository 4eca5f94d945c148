"""docs/managed-kafka.md names what is sent: each request, its version, and each setting."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from sequitur.kafka.metadata import NEEDED_VERSIONS
from tests.support.pages import rows_of, section
from tests.support.tree import ROOT

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
_NO_REQUEST: Final = frozenset({"let_go", "poll"})
"""Calls of admin clients that make none."""


@cache
def _text() -> str:
    """Return all that the product consists of."""
    return "\n".join(
        path.read_text() for folder in _PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))
    )


def _requests() -> set[str]:
    """Return what the product asks brokers for, by Kafka's names."""
    made = re.findall(r"(?<!class )(?<!web\.)\b([A-Z]\w+?)Request\(", _text())
    called = re.findall(r"\b_?(?:admin|consumer|producer)\.(\w+)\(", _text())
    return {_NAMES.get(one, one) for one in made}.union(*(_CALLS.get(one, ()) for one in called))


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
    both = [ROOT / "sequitur" / "kafka" / name for name in ("admin.py", "record_format.py")]
    read = {
        name for path in both for name in re.findall(r'"([a-z]+(?:\.[a-z]+)+)"', path.read_text())
    }
    assert "producer.id.expiration.ms" in read
    rows = rows_of(section(_PAGE, "Check the settings"))
    named = {name for row in rows for name in _named(row[0])}
    untold = {row[0].strip("`") for row in rows if row[2].startswith("never read")}
    assert named - untold == read


def test_each_call_of_an_admin_client_is_known() -> None:
    """One that is new makes a request that the page has to name."""
    made = set(re.findall(r"\b_?admin\.(\w+)\(", _text()))
    assert "create_topics" in made
    assert made - _NO_REQUEST <= set(_CALLS)

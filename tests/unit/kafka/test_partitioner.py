"""Events go to the partitions that Kafka's Java client would choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.kafka import partition
from sequitur.kafka.partition import (
    KeyPartitioner,
    StickyPartitioner,
    murmur2,
    murmur2_bulk,
)


def _reference_murmur2(data: bytes) -> int:
    """Kafka's `Utils.murmur2`, line by line, as an unsigned number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    length = len(data)
    h = 0x9747B28C ^ length
    for i in range(length // 4):
        k = int.from_bytes(data[i * 4 : i * 4 + 4], "little")
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = (h * m) & mask
        h ^= k
    rest = length & ~3
    if length % 4 == 3:
        h ^= data[rest + 2] << 16
    if length % 4 >= 2:
        h ^= data[rest + 1] << 8
    if length % 4 >= 1:
        h ^= data[rest]
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    return h ^ (h >> 15)


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_hashes_of_kafkas_own_test(key: bytes, java_hash: int) -> None:
    """The vectors of org.apache.kafka.common.utils.UtilsTest."""
    assert murmur2(key) == java_hash & 0xFFFFFFFF


@given(st.binary(max_size=64))
def test_murmur2_is_javas(key: bytes) -> None:
    """The fast form equals the one that follows Java line by line."""
    assert murmur2(key) == _reference_murmur2(key)


@given(
    st.integers(1, 40).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1))
)
def test_a_bulk_of_keys_hashes_as_each_of_them(keys: list[bytes]) -> None:
    """The numpy form equals the one for a single key."""
    assert murmur2_bulk(keys, len(keys[0])) == [murmur2(key) for key in keys]


@given(st.lists(st.binary(max_size=12), max_size=200), st.integers(1, 50))
def test_many_keys_go_where_each_would_go(keys: list[bytes], partitions: int) -> None:
    """`learn` and `partition` agree, and both are in range."""
    many, single = KeyPartitioner(partitions), KeyPartitioner(partitions)
    known = many.learn(keys)
    assert [known[key] for key in keys] == [single.partition(key) for key in keys]
    assert all(0 <= known[key] < partitions for key in keys)


def test_remembered_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless new keys don't fill the memory, and what is asked for is always there."""
    monkeypatch.setattr(partition, "_CACHE_BYTES", 20_000)
    bounded = KeyPartitioner(4)
    for start in range(0, 10_000, 50):
        keys = [b"key-%d" % number for number in range(start, start + 50)]
        known = bounded.learn([*keys, b"steady"])
        assert set(keys) <= known.keys()
        assert len(known) < 200
        assert known[b"steady"] == bounded.partition(b"steady")


@pytest.mark.parametrize("partitions", [0, -1])
def test_a_topic_without_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(ValueError, match="partitions"):
        KeyPartitioner(partitions)
    with pytest.raises(ValueError, match="partitions"):
        StickyPartitioner(partitions, 0.5)


@given(st.integers(2, 100), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_full_batch_moves_the_sticky_partition_on(
    partitions: int, first: float, second: float
) -> None:
    """After its batch is full another partition is chosen, never the same one."""
    sticky = StickyPartitioner(partitions, first)
    before = sticky.current
    sticky.move_on(before, second)
    assert sticky.current != before
    assert 0 <= sticky.current < partitions


def test_a_full_batch_of_another_partition_moves_nothing() -> None:
    """Only the sticky partition's own batch ends its turn."""
    sticky = StickyPartitioner(4, 0.0)
    sticky.move_on(3, 0.5)
    assert sticky.current == 0

"""Files of a query's checkpoint, byte for byte as Spark 4.2.0 has written them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

METADATA: Final = '{"id":"4e462ed7-8fad-4f24-99cc-b04b2e2394b7"}'
SOURCE: Final = '\0v1\n{"readings":{"0":0,"1":0,"2":0,"3":0}}'
CLOCK_AND_SETTINGS: Final = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1795850435337,"conf":{'
    '"spark.sql.streaming.stateStore.providerClass":'
    '"org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",'
    '"spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion":"2",'
    '"spark.sql.streaming.stateStore.rocksdb.formatVersion":"5",'
    '"spark.sql.streaming.queryEvolution.enableSourceEvolution":"false",'
    '"spark.sql.streaming.stateStore.encodingFormat":"unsaferow",'
    '"spark.sql.streaming.statefulOperator.useStrictDistribution":"true",'
    '"spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion":"2",'
    '"spark.sql.streaming.multipleWatermarkPolicy":"min",'
    '"spark.sql.streaming.stateStore.rowChecksum.enabled":"false",'
    '"spark.sql.streaming.aggregation.stateFormatVersion":"2",'
    '"spark.sql.function.protobufExtensions.enabled":"false",'
    '"spark.sql.shuffle.partitions":"200",'
    '"spark.sql.streaming.join.stateFormatVersion":"2",'
    '"spark.sql.streaming.stateStore.compression.codec":"lz4",'
    '"spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan":"false"}}'
)
PLAN: Final = f'v1\n{CLOCK_AND_SETTINGS}\n{{"readings":{{"0":1000,"1":2000,"2":0,"3":0}}}}'
COMMIT: Final = 'v1\n{"nextBatchWatermarkMs":0}'


def write_with_checksum(folder: Path, name: str, text: str) -> None:
    """Write a file, and beside it one that stands for Hadoop's checksum."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0")

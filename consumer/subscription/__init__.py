"""A subscription's cursor: which offsets of a partition are acked, and how that is written down.

Pure: no client of Kafka, no clock. After Apache Pulsar's cursors, whose names it keeps.
"""

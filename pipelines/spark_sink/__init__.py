"""Exactly once into Kafka for streams and DataFrames of a user's own, without our jobs.

Its public name is `sequitur.spark`. In the driver a batch is staged, planned, sent and marked as
done (`exactly_once`); Spark's tasks write and read the staged rows.
"""

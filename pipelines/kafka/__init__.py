"""The jobs' requests to Kafka beside Spark's: topics, limits, tokens, transactions, outages.

Called by `sink` and `ordering`, in the driver and in Spark's tasks.
"""

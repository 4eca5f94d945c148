"""What the jobs ask of Kafka beside Spark: topics, limits, tokens, transactions, patience.

Called by `sink` and `ordering`, in the driver and in Spark's tasks.
"""

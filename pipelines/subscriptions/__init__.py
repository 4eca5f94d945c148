"""Subscriptions in Kafka: cursors, the registry, and what follows from them. No Spark.

Called by `ordering`, and by the command line.
"""

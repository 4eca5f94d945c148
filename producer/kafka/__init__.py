"""Kafka's protocol: requests, answers, record batches, and what the brokers' settings say.

Called by the producer and by `pipelines`. It knows of neither.
"""

"""Acking, retries, and the rule that settles the events of a batch.

Pure. Called by the engine, by `pipelines.topology` and by the tester.
"""

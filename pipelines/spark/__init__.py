"""Spark itself: the session, its Python daemon, tasks, and jobs that spark-submit has started.

Called by everything in `pipelines`; it knows of none of it.
"""

"""Spark itself: tasks, and columns on their way between the JVM and Python.

Called by everything in `pipelines`; it knows of none of it.
"""

"""A topology in Spark's tasks, behind the reorder stage of each step.

Called by `ordering`'s engine and by the process script.
"""

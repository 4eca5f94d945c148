"""A topology in the tasks of a job, behind the reorder stage of each step.

Called by `ordering`'s engine and by the process script.
"""

"""Runs the tasks of one process: tuples to bolts, emissions to tasks, calls side by side.

Called by `step.tasks`.
"""

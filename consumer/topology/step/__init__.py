"""A step of a topology: stage after stage, then the ackers, then what becomes of each event.

Called by the tasks of `pipelines.topology` and by the tester, which differ in where files are
alone.
"""

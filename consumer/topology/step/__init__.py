"""A step of a topology: stage after stage, then the ackers, then what becomes of each event.

Called by `pipelines.topology.step_runs` and by the tester. They differ in where files are.
"""

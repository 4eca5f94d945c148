"""The log of the reorder job: what each step staged, how far it moved the frontier, what is held.

Pure. Called by the jobs, and by whoever reads their checkpoint.
"""

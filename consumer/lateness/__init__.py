"""Late rows: the policies, the reasons, and how far each key has been released.

Pure. Called by the jobs.
"""

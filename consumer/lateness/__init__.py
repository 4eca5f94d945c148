"""Late rows: the judge, the policies, and how far each key has been released.

Pure. Called by the jobs.
"""

"""Event time: what one is, the clock of each source partition, the frontier, the learned delay.

Pure. Called by the jobs, and by whoever reads their log.
"""

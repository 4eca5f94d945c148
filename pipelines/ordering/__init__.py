"""The reorder job: a step stages rows, moves the frontier, and releases what it has passed.

Called by the scripts and by `sequitur reorder`; a topology runs behind it.
"""

"""The producer's durable memory: segment files in a directory.

Called by `delivery` and by `sequitur journal`. State and codec are pure; `disk` alone does I/O.
"""

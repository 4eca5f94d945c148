"""`produce-events`: a source's events into the producer, with a log, a health port and an end.

Called by the command line.
"""

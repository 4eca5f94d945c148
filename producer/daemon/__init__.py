"""`produce-events`: a source's events into the producer, with a log and a health port.

Called by the command line.
"""

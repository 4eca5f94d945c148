"""Rows: as they come from Kafka, as they wait in files, as they are picked from there.

Called by `ordering`, `sink` and `topology`; what runs in tasks is Arrow alone.
"""

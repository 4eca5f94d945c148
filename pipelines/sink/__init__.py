"""Rows into topics: laid out as records, and written once, each under a sequence of its own.

Called by `ordering`, `topology` and `spark_sink`, in the driver and in tasks.
"""

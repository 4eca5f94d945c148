"""Rows into topics: laid out as records, and written once, in transactions.

Called by `ordering` and `topology`, in the driver and in Spark's tasks.
"""

"""The checkpoint: documents and files that outlast a power cut, and whose they are.

Called by `ordering`, `topology` and `spark_sink`.
"""

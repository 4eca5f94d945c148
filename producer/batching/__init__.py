"""Events into batches: where they are accepted, partitioned, laid out, and held until settled.

Called by the client, which gives events, and by `delivery`, which takes batches.
"""

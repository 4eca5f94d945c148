"""What users write topologies with: bolts, tuples, collectors, groupings, the builder.

Called by users, and by `engine`, which runs what they built.
"""

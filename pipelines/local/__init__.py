"""The local runner: a reorder job as one program on this machine, without Spark and Java."""

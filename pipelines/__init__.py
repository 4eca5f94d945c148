"""The jobs, on Spark or on this machine, and what they need: a session, jars, processes."""

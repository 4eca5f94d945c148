"""The Spark jobs, the session they run in, and the jars they need."""

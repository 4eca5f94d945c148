"""States in SQL databases: SQLite, and PostgreSQL by psycopg.

`store` alone is imported before a database is used: the other modules need SQLAlchemy.
"""

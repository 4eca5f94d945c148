"""Subscriptions: `api` is the user's, `consumption` runs one, `cursor_store` keeps their cursors.

`cursor` is pure. It is made after Apache Pulsar's cursors, and keeps their names.
"""

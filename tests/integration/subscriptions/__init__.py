"""Subscriptions on a real broker."""

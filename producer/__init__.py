"""The idempotent producer and its daemon."""

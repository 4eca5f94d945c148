"""A subscription of a topic, in Python: `Subscription`."""

from sequitur.consumer.subscription.api import (
    Backoff,
    CursorStats,
    Edge,
    Message,
    Position,
    Subscription,
    SubscriptionStats,
    SubscriptionType,
)

__all__ = [
    "Backoff",
    "CursorStats",
    "Edge",
    "Message",
    "Position",
    "Subscription",
    "SubscriptionStats",
    "SubscriptionType",
]

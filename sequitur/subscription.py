"""A subscription of a topic, in Python: `Subscription`."""

from sequitur.base.retry import Backoff
from sequitur.consumer.subscription.api import Message, Subscription, SubscriptionStats
from sequitur.consumer.subscription.cursor import CursorStats
from sequitur.consumer.subscription.position import Edge, Position
from sequitur.consumer.subscription.registry import SubscriptionType

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

"""The errors of the producer.

ProducerError
├── SettingsError          producer.settings
└── MalformedEventIdError  producer._event_id
"""


class ProducerError(Exception):
    """Base of every error this package raises on purpose."""

"""Kafka as all parts see it: settings, wire, metadata, records, codes, topics, groups."""

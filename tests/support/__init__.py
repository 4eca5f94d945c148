"""Brokers, fakes, models and cases that tests share."""

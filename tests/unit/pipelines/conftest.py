"""A reorder job on lists."""

from tests.support.list_job import job

__all__ = ["job"]

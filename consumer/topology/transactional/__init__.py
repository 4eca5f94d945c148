"""Transactional topologies: batches with ids, committed in the order of these, as Storm's."""

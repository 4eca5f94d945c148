"""Batches to the brokers: numbered, journaled, sent, retried, and settled.

Called by the client alone. The sequencer is pure. The other modules do the I/O.
"""

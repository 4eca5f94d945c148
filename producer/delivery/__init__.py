"""Batches to the brokers: numbered, journaled, sent, retried, and settled.

Called by the client alone. The sequencer is pure; what is around it does the I/O.
"""

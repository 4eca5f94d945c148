"""Topologies on plain lists, with a clock that is moved by hand, and their trees to look at.

Called by users' tests, through `sequitur.testing`.
"""

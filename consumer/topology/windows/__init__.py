"""Windows and what else bolts do with the events of a key over time: built on keyed bolts only.

Users call these; the engine knows nothing of them but that they are keyed bolts.
"""

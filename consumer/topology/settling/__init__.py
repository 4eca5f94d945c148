"""Which trees are done, which events wait, which are tried again, and which stand or fall together.

Pure. Called by the engine, by `pipelines.topology` and by the tester.
"""

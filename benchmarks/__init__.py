"""Benchmarks: each runs its peers beside us in the same run, and reports ratios."""

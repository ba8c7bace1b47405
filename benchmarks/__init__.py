"""Speed as ratios measured in one run: ``make bench`` runs all and writes
``results/benchmarks.md``.
"""

"""The laboratory: grids, the paper, comparisons of methods, tuning, and pages of their results.
Needs the extra ``lab``.
"""

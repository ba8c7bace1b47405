"""Studies that were made once and whose pages still stand in ``results/``: ``python -m lab.NAME``
makes a page again. What measures the speed of the library, or holds it to its laws, is in
``benchmarks/``.
"""

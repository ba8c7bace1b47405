"""Columns with names, units and rules: schema and invertible encoder.

Start with ``feature.py``, a column with its rules, ``schema.py``, all columns, and ``encode.py``,
the encoder. ``constrain.py`` turns rules into constraints in model space; ``plan_judge.py`` is the
one place that decides whether a plan keeps the rules. How to add a rule is in CONTRIBUTING.md.
"""

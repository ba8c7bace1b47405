"""People with a DataFrame: columns and their rules, advice, estimators, audits, export.

``card.py`` writes model cards (``card_numbers.py``, ``card_parts.py``); ``portfolio.py`` explains
every row of a file in blocks, and continues after an interruption. The rest is in folders.
"""

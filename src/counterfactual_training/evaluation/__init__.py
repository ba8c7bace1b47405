"""Evaluation of any torch classifier, with our search or any explainer.

Start with ``evaluate.py`` and ``protocol.py``. ``metrics.py`` describes every metric;
``plugins.py`` takes a user's metrics and explainers. ``stepfree.py`` and ``judges.py`` measure what
no step size affects, ``acceptance.py`` asks models of other families whether advice works. Nothing
here imports ``training``: every model is measured by the same code.
"""

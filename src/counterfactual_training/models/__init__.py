"""Networks, and the generative model that REVISE searches in.

Start with ``classifiers.py``. ``stack.py`` treats many models as one, ``ensemble.py`` averages
several, ``inside.py`` turns a regression into a classifier of inside and outside an interval.
``shapes.py`` describes networks as plain numbers for files, ``trace.py`` recognises chains of
layers. A new architecture for data frames also goes into ``tables/estimators/networks.py``.
"""

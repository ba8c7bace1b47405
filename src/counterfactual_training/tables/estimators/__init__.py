"""The scikit-learn interface: data frames in, decisions and explanations in the user's units
out.

Start with ``classifier.py``; fit, partial_fit and tune are in ``learning.py``, over ``fit.py``.
``parameters.py`` chooses a method whose sizes suit the rows, ``nested.py`` reads ``method__…``,
``file.py`` saves and loads. ``regressor.py`` asks for numbers and intervals as a classifier of
inside and outside. ``explainer.py`` and ``pipeline.py`` are for models that were trained elsewhere,
``witnesses.py`` fits a classifier to bootstrap samples.
"""

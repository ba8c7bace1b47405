"""Algorithm 1: search, contrast, protect, update.

Start with ``algorithm.py``, which is Algorithm 1. ``epoch.py`` holds the random streams, batches,
attempts and records of an epoch, ``learner.py`` the gradients and the optimizer, ``run.py``
members, callbacks and checkpoints. ``method.py`` is the class :class:`Method`; ``methods.py`` and
``regression.py`` are the published methods, each of which sees one ``round.py``; ``registry.py``
finds them by name. ``train.py`` trains one model, ``fleet.py`` many. ``distributed.py`` wraps run,
learner and checkpoint for several processes; only ``train.py`` knows of it.
"""

# Imported so that published methods are registered by name.
from counterfactual_training.training import methods, regression

__all__ = ["methods", "regression"]

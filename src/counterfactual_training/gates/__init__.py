"""Gates: classifiers that also say how plausible a row is, so that counterfactuals end among real
rows.

Start with ``gated.py``, a classifier with one more class. ``density.py``, ``nearby.py`` (density of
points that differ from a row in some columns) and ``learned.py`` (a network) are the gates,
``calibration.py`` sets their threshold, ``fit.py`` makes them by name. ``anchors.py`` finds paths
along real rows.
"""

from counterfactual_training.gates.anchors import towards_real
from counterfactual_training.gates.density import Density
from counterfactual_training.gates.fit import KINDS, few_rows, fit_gate, gate_of, make_gate
from counterfactual_training.gates.gated import Both, Gate, Gated
from counterfactual_training.gates.learned import GateConfig, Learned
from counterfactual_training.gates.nearby import Nearby

__all__ = [
    "KINDS",
    "Both",
    "Density",
    "Gate",
    "GateConfig",
    "Gated",
    "Learned",
    "Nearby",
    "few_rows",
    "fit_gate",
    "gate_of",
    "make_gate",
    "towards_real",
]

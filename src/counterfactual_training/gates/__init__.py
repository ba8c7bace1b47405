"""Gates: a classifier that knows where its classes end, so that advice ends among real rows."""

from counterfactual_training.gates.anchors import real_rows, search_gated, towards_real
from counterfactual_training.gates.density import Density
from counterfactual_training.gates.fit import KINDS, fit_gate, make_gate
from counterfactual_training.gates.gated import Both, Gate, Gated
from counterfactual_training.gates.learned import GateConfig, Learned

__all__ = [
    "KINDS",
    "Both",
    "Density",
    "Gate",
    "GateConfig",
    "Gated",
    "Learned",
    "fit_gate",
    "make_gate",
    "real_rows",
    "search_gated",
    "towards_real",
]

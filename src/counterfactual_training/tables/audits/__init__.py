"""Audits of a model's advice: burden of recourse by group, proxies, and validity later.

Start with ``audit.py``. ``measures.py`` holds burden, gaps and NAWB by group, with intervals;
``proxies.py`` asks whether a group can be guessed, from columns or from advice; ``robustness.py``
checks whether advice stays valid after retraining and under noise.
"""

from counterfactual_training.tables.audits.audit import audit
from counterfactual_training.tables.audits.groups import make_groupings, usual_groups
from counterfactual_training.tables.audits.measures import MEASURES, Measure
from counterfactual_training.tables.audits.people import Subject
from counterfactual_training.tables.audits.protocol import AuditProtocol
from counterfactual_training.tables.audits.result import Audit
from counterfactual_training.tables.audits.robustness import (
    CHECKS,
    num_draws,
    with_weight_noise,
)
from counterfactual_training.tables.audits.subjects import retrainer

__all__ = [
    "CHECKS",
    "MEASURES",
    "Audit",
    "AuditProtocol",
    "Measure",
    "Subject",
    "audit",
    "make_groupings",
    "num_draws",
    "retrainer",
    "usual_groups",
    "with_weight_noise",
]

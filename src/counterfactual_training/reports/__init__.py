"""Tables, figures and pages of results. ``write_…`` writes the files that a command of ``ct``
writes.
"""

from counterfactual_training.reports.arena_report import write_arena
from counterfactual_training.reports.demo_report import RunInfo, write_demo
from counterfactual_training.reports.grid_report import write_grid
from counterfactual_training.reports.model_page import write_model_page
from counterfactual_training.reports.paper_report import write_report, write_reproduction
from counterfactual_training.reports.truth_report import write_truth, write_truth_page
from counterfactual_training.reports.tune_report import write_tuning

__all__ = [
    "RunInfo",
    "write_arena",
    "write_demo",
    "write_grid",
    "write_model_page",
    "write_report",
    "write_reproduction",
    "write_truth",
    "write_truth_page",
    "write_tuning",
]

"""How models are compared on validation rows: restarts of a fit, and trials of a tuning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.evaluate import evaluate, summarise
from counterfactual_training.evaluation.findings import MeasurementWarning
from counterfactual_training.evaluation.metrics import COUNTERFACTUAL
from counterfactual_training.evaluation.protocol import EvaluationProtocol

# Every validation row once, at all strengths of the energy penalty that the paper averages over.
# What is not tuned is not measured: mmd_size=2 makes IP* cost nothing.
VALIDATION = EvaluationProtocol(
    "validation",
    epsilons=(0.1,),
    attacks=("fgsm",),
    mmd_size=2,
    langevin_steps=0,
    attribution_rounds=0,
)
# Enough to tell a hopeless trial from a promising one.
GLANCE = replace(VALIDATION, name="glance", num_individuals=150, lambda_energy=(1.0,))

MEASURED = (
    *(name for name in COUNTERFACTUAL if name != "implausibility_mmd"),
    "accuracy",
    "robust_accuracy",
)


@dataclass(frozen=True, eq=False)
class ValidationRows:
    """Rows that no training saw, and the constraints of the searches on them."""

    x: Tensor
    y: Tensor
    constraints: Constraints
    protocol: EvaluationProtocol = VALIDATION
    glance: EvaluationProtocol = GLANCE

    def __post_init__(self) -> None:
        if len(self.y.unique()) < 2:
            raise InputError(
                f"Validation needs rows of every class; {len(self.y)} rows hold "
                f"{self.y.unique().tolist()}."
            )

    def quick(self, trials: Sequence[Sequence[nn.Module]]) -> list[dict[str, float]]:
        """The measures from fewer individuals, while the models still train."""
        return replace(self, protocol=self.glance)(trials)

    def __call__(
        self, trials: Sequence[Sequence[nn.Module]], quiet: bool = True
    ) -> list[dict[str, float]]:
        """:data:`MEASURED` of each trial, averaged over models; ``quiet`` mutes warnings."""
        models = [model for trial in trials for model in trial]
        if not models:
            return []
        with warnings.catch_warnings():
            # Small groups concern IP* only, which is not used here.
            warnings.filterwarnings(
                "ignore", "" if quiet else "small_groups", MeasurementWarning
            )
            table = evaluate(
                models, (self.x, self.y), self.protocol, self.constraints, families={}
            )
        numbers = (
            summarise(table).unstack("metric").reindex(columns=list(MEASURED)).sort_index()
        )
        ends = np.cumsum([len(trial) for trial in trials])
        parts = np.split(numbers.to_numpy(dtype=np.float64), ends[:-1])
        return [dict(zip(MEASURED, part.mean(0).tolist(), strict=True)) for part in parts]

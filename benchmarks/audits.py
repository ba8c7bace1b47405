"""Audits of counterfactual training beside conventional training, on Adult and Cred.

``python -m benchmarks.audits results`` trains both models with the paper's settings and one seed,
holds fixed what people cannot change, and writes ``results/audit/``. Reads the data of
``CT_DATA_HOME``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from counterfactual_training.datasets import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.experiments.retrain import dataset_retrainer
from counterfactual_training.experiments.trained import Recipe, as_classifier, fit
from counterfactual_training.generators import make_generator
from counterfactual_training.reports import RunInfo
from counterfactual_training.reports.audit_page import write_audit
from counterfactual_training.tables.audits import Audit, Subject, audit

_ADULT = (
    "age",
    "sex",
    "race",
    "marital_status",
    "relationship",
    "country",
    "education_num",
    "fnlwgt",
)
_CAPITAL = ("capital_gain", "capital_loss")
# Advice asks for the decision, of which these data sets have two.
_DECISION = 0.5


@dataclass(frozen=True)
class Plan:
    """One audit.

    Attributes:
        fixed: columns that nobody can change, in the training of CT and in advice.
        retrain: trainings by another seed, and as many without a part of the rows.
    """

    title: str
    data: str
    target: str
    groups: tuple[str, ...]
    fixed: tuple[str, ...]
    retrain: int


PLANS = {
    "adult": Plan("Adult, income above 50K", "adult", ">50K", ("sex", "race"), _ADULT, 1),
    "adult_work": Plan(
        "Adult, capital gains and losses fixed too",
        "adult",
        ">50K",
        ("sex", "race"),
        _ADULT + _CAPITAL,
        1,
    ),
    "cred": Plan(
        "Cred, no default (sex: 1 men, 2 women; education: 1 graduate school, 2 university, 3 "
        "high school)",
        "credit_default",
        "no default",
        ("sex", "education", "age"),
        ("sex", "education", "marriage", "age"),
        2,
    ),
}


def trained(recipe: Recipe, data: Dataset, name: str) -> Subject:
    """A model of the recipe, ready to be audited."""
    model = fit(recipe, data, progress=False).model
    generator = make_generator(
        recipe.generator,
        data.x_train,
        data.y_train,
        decision_threshold=data.settings.decision_threshold,
    )
    classifier = as_classifier(model, data, generator, recipe.protected)
    return Subject(classifier, name, dataset_retrainer(recipe, data))


def measured(plan: Plan, seed: int, epochs: int | None = None) -> Audit:
    data = load_dataset(plan.data)
    recipe = Recipe(data=data.name, protected=plan.fixed, seed=seed)
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs)
    ct = trained(recipe, data, "CT")
    conventional = trained(replace(recipe, objective="vanilla"), data, "conventional")
    labels = [data.class_names[i] for i in data.y_test.tolist()]
    return audit(
        ct,
        data.frame_test,
        labels,
        plan.groups,
        plan.target,
        against=conventional,
        retrain=plan.retrain,
        confidence=_DECISION,
        seed=seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audits", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of results")
    parser.add_argument("--only", choices=list(PLANS), help="one of the audits")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, plan in PLANS.items():
        if arguments.only not in (None, name):
            continue
        started = time.perf_counter()
        found = measured(plan, arguments.seed)
        command = (
            f"python -m benchmarks.audits {arguments.out} --only {name} --seed {arguments.seed}"
        )
        run = RunInfo(command, time.perf_counter() - started)
        # Another training beside the first: what differs between them is no property of the method.
        if arguments.seed == 0:
            page = f"{name}.html"
        else:
            page = f"{name}_seed{arguments.seed}.html"
        print(*write_audit(found, arguments.out / "audit" / page, run, plan.title), flush=True)


if __name__ == "__main__":
    main()

"""Audits of counterfactual training beside conventional training, on Adult and Cred.

``python -m lab.audits results`` trains both models with the paper's settings and one seed,
holds fixed what people cannot change, and writes ``results/audit/``. Reads the data of
``CT_DATA_HOME``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterfactual_lab.dataset_classifier import as_classifier
from counterfactual_lab.grids.settings import published
from counterfactual_lab.networks import encoder_of, fit_model, untrained
from counterfactual_training.datasets import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.tables.audits import Audit, AuditProtocol, Subject, audit
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.pages.audit_page import write_audit
from counterfactual_training.tables.pages.files import RunInfo
from counterfactual_training.training.method import Method

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


def trained(method: Method, data: Dataset, fixed: tuple[str, ...], name: str) -> Subject:
    """The paper's network, trained by the method, ready to be audited."""
    seed = method.training.seed

    def classifier(rows: Tensor, seed: int) -> CounterfactualClassifier:
        part = replace(data, x_train=data.x_train[rows], y_train=data.y_train[rows])
        model = untrained(data, seed)
        fit_model(model, part, method.seeded(seed), progress=False)
        return as_classifier(model.eval(), data, fixed)

    def retrain(other: int, left_out: float) -> CounterfactualClassifier:
        num = len(data.y_train)
        rng = torch.Generator().manual_seed(other)
        rows = torch.randperm(num, generator=rng)[round(left_out * num) :].sort().values
        # Rows or seed: what changes with both could not be told apart.
        if left_out:
            return classifier(rows, seed)
        return classifier(rows, other)

    return Subject(classifier(torch.arange(len(data.y_train)), seed), name, retrain)


def measured(plan: Plan, seed: int, epochs: int | None = None) -> Audit:
    data = load_dataset(plan.data)
    slices = encoder_of(data).slices_
    columns = [j for name in plan.fixed for j in range(slices[name].start, slices[name].stop)]
    held = replace(data, protected=tuple(columns)).protect(data.training_constraints)
    settings: dict[str, Any] = {"constraints": held, "seed": seed}
    if epochs is not None:
        settings["epochs"] = epochs
    subjects = {
        name: trained(published(text, data.settings).replace(settings), data, plan.fixed, name)
        for name, text in (("CT", "ct_published"), ("conventional", "conventional"))
    }
    labels = [data.class_names[i] for i in data.y_test.tolist()]
    return audit(
        subjects["CT"],
        data.frame_test,
        labels,
        plan.groups,
        plan.target,
        against=subjects["conventional"],
        protocol=AuditProtocol(retrain=plan.retrain, confidence=_DECISION, seed=seed),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.audits", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of results")
    parser.add_argument("--only", choices=list(PLANS), help="one of the audits")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, plan in PLANS.items():
        if arguments.only not in (None, name):
            continue
        started = time.perf_counter()
        audit = measured(plan, arguments.seed)
        command = f"python -m lab.audits {arguments.out} --only {name} --seed {arguments.seed}"
        run = RunInfo(command, time.perf_counter() - started)
        # Another training beside the first: what differs between them is no property of the method.
        if arguments.seed == 0:
            page = f"{name}.html"
        else:
            page = f"{name}_seed{arguments.seed}.html"
        print(*write_audit(audit, arguments.out / "audit" / page, run, plan.title), flush=True)


if __name__ == "__main__":
    main()

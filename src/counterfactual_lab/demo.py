"""The demo: conventional against counterfactual training on two data sets, with and without a
protected feature.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from counterfactual_lab.dataset_classifier import as_classifier
from counterfactual_lab.networks import encoder_of, with_weights
from counterfactual_lab.panels import TARGET, DecisionPanel, make_panel
from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.catalog import load_dataset, loan_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.evaluate import evaluate, summarise
from counterfactual_training.evaluation.metrics import METRICS
from counterfactual_training.evaluation.protocol import EvaluationProtocol
from counterfactual_training.generators import generic
from counterfactual_training.models.classifiers import linear, mlp
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.file import Origin, row_marks
from counterfactual_training.training import methods
from counterfactual_training.training.method import Method
from counterfactual_training.training.run import History, TrainResult
from counterfactual_training.training.train import train

TRAININGS = ("conventional", "counterfactual")
DECISION = "decision"  # the column of the class, in the file of applicants
PEOPLE = (0.1, 0.5, 0.9)  # quantiles of age of the applicants whom the page advises
# As in the paper's evaluation; the strength of ECCo's energy penalty depends on it.
SEARCH_STEPS = 50

Notify = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class DemoPlan:
    """How one data set of the demo is trained."""

    data: Dataset
    make_model: Callable[[int, int], nn.Module]
    method: Method


@dataclass(frozen=True, eq=False)
class DemoTrial:
    """A trained model, and whether the protected features are immutable for its counterfactuals."""

    plan: DemoPlan
    training: str
    protected: bool
    model: nn.Module
    history: History = field(default_factory=History)

    @property
    def data(self) -> Dataset:
        return self.plan.data

    @property
    def held(self) -> str:
        """The features that no counterfactual may change, in words."""
        if self.protected:
            return ", ".join(self.data.protected_names)
        return ""

    @property
    def constraints(self) -> Constraints:
        if self.protected:
            return self.data.protect(self.data.constraints)
        return self.data.constraints

    def title(self, letter: str) -> str:
        """The title of its panel."""
        return (
            f"({letter}) {self.training} training, "
            f"{f'{self.held} immutable' if self.held else 'all mutable'}"
        )


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo found.

    Attributes:
        table: a row per data set, training and protection: ``data``, ``method``, ``protected``
            (the feature, or empty), then :data:`METRICS` and ``share_mature``.
        panels: four per data set, in the order of the table.
        advice: a row per applicant: ``age``, ``debt`` and what each training tells them
            (``conventional``, ``counterfactual``), *age* being protected.
        debt_per_year: by training, how many thousand dollars of debt count as much as a year of
            age.
        lenders: by training, the loan classifier with *age* protected, to ask further questions.
        applicants: people of the loan example who were not trained on, with their class as the
            column ``decision``.
        settings: by data set, what was trained and how, as plain values.
        protocol: how it was measured.
    """

    table: pd.DataFrame
    panels: tuple[DecisionPanel, ...]
    advice: pd.DataFrame
    debt_per_year: dict[str, float]
    lenders: dict[str, CounterfactualClassifier]
    applicants: pd.DataFrame
    settings: dict[str, dict[str, Any]]
    protocol: EvaluationProtocol


def make_plans(quick: bool = False, seed: int = 0) -> tuple[DemoPlan, DemoPlan]:
    """The loan example as in the authors' proof of concept (linear, *Generic*), and Moon as in
    their tables.

    Both have larger learning rates and fewer rows than the authors used. The loan classifiers begin
    with conventional epochs: Prop. 3.1 protects once counterfactuals stop short of the target's
    mean, which those of an untrained classifier need not do.
    """
    shared: dict[str, Any] = {"batch_size": 50, "seed": seed}
    if quick:
        epochs = 10
        num = 60
    else:
        epochs = 80
        num = 300
    method = methods.ct_published(
        generator=generic(),
        lambda_div=0.5,
        lambda_reg=0.01,
        lambda_adv=0.1,
        epochs=epochs,
        num_counterfactuals=num,
        burn_in=0.25,
        learning_rate=0.03,
        **shared,
    )
    if quick:
        data = loan_dataset(200, 100)
    else:
        data = loan_dataset(1000, 400)
    loan = DemoPlan(data, linear, method)

    moons = load_dataset("moons")
    if quick:
        rows = 300
        epochs = 10
        num = 100
    else:
        rows = 1500
        epochs = 60
        num = 500
    method = methods.ct_published(
        decision_threshold=moons.settings.decision_threshold,
        lambda_reg=moons.settings.lambda_reg,
        epochs=epochs,
        num_counterfactuals=num,
        learning_rate=0.005,
        **shared,
    )
    data = replace(moons, x_train=moons.x_train[:rows], y_train=moons.y_train[:rows])
    return loan, DemoPlan(data, mlp, method)


def run_demo(
    quick: bool = False, seed: int = 0, notify: Notify = lambda message: None
) -> DemoResult:
    """Train six small classifiers and measure them; with ``quick`` the numbers mean little."""
    # Only what the page shows is measured.
    shown = EvaluationProtocol(
        langevin_steps=0, attacks=("fgsm",), epsilons=(0.3,), attribution_rounds=0
    )
    protocol = replace(shown, num_individuals=50 if quick else 400, seed=seed)
    plans = make_plans(quick, seed)
    trials = [trial for plan in plans for trial in run_trials(plan, notify)]
    loan = plans[0]
    chosen = [trial for trial in trials if trial.data.name == "loan" and trial.protected]
    lenders = {trial.training: _lender(trial) for trial in chosen}
    return DemoResult(
        table=pd.DataFrame([demo_row(trial, protocol) for trial in trials]),
        panels=tuple(_panel(trial, "abcd"[place % 4]) for place, trial in enumerate(trials)),
        advice=_advice(loan, lenders),
        debt_per_year={
            trial.training: debt_per_year(loan.data, trial.model) for trial in chosen
        },
        lenders=lenders,
        applicants=_labelled(loan.data.frame_test, loan.data, loan.data.y_test),
        settings={plan.data.name: _settings(plan) for plan in plans},
        protocol=protocol,
    )


def run_trials(plan: DemoPlan, notify: Notify = lambda message: None) -> list[DemoTrial]:
    """Conventional and counterfactual training, all mutable; then both with the protected features
    immutable.

    Conventional training does not use constraints: it is the same model both times.
    """
    free = plan.data.training_constraints
    protected = plan.data.protect(plan.data.training_constraints)
    conventional = _trained(plan, "conventional", free, notify)
    trials = []
    for held, constraints in ((False, free), (True, protected)):
        ours = _trained(plan, "counterfactual", constraints, notify)
        for training, result in zip(TRAININGS, (conventional, ours), strict=True):
            trials.append(DemoTrial(plan, training, held, result.model.eval(), result.history))
    return trials


def demo_row(trial: DemoTrial, protocol: EvaluationProtocol) -> dict[str, Any]:
    """A row of the demo's table."""
    table = evaluate(trial.model, trial.data, protocol, trial.constraints, families={})
    numbers = summarise(table)
    wanted = {name: float(numbers[name]) for name in (*METRICS, "share_mature")}
    return {
        "data": trial.data.name,
        "method": trial.training,
        "protected": trial.held,
        **wanted,
    }


def _panel(trial: DemoTrial, letter: str) -> DecisionPanel:
    generator = trial.plan.method.searcher.replace(max_steps=SEARCH_STEPS)
    return make_panel(
        trial.data, trial.model, generator, trial.constraints, trial.title(letter)
    )


def _trained(
    plan: DemoPlan, training: str, constraints: Constraints, notify: Notify
) -> TrainResult:
    started = time.perf_counter()
    if training == "counterfactual":
        method = plan.method
    else:
        method = plan.method.conventional()
    model = with_weights(
        method.training.seed,
        lambda: plan.make_model(plan.data.num_features, plan.data.num_classes),
    )
    result = train(
        model,
        plan.data.x_train,
        plan.data.y_train,
        method,
        constraints,
        # The optimiser of the authors' proof of concept; their tables use plain Adam.
        optimizer=lambda parameters: torch.optim.Adam(
            parameters, lr=method.training.learning_rate, amsgrad=True
        ),
    )
    held = [
        plan.data.feature_names[j] for j in constraints.immutable.nonzero().flatten().tolist()
    ]
    if held:
        protection = f", {', '.join(held)} protected"
    else:
        protection = ""
    notify(
        f"{plan.data.name}: {training} training{protection}, {time.perf_counter() - started:.1f} s"
    )
    return result


def _lender(trial: DemoTrial) -> CounterfactualClassifier:
    data = trial.data
    lender = as_classifier(trial.model, data, data.protected_names)
    lender.history_ = trial.history  # tells how it was trained
    lender.origin_ = _origin(data)
    return lender


def _labelled(frame: pd.DataFrame, data: Dataset, y: torch.Tensor) -> pd.DataFrame:
    return frame.assign(**{DECISION: np.array(data.class_names, dtype=object)[y.numpy()]})


def _origin(data: Dataset) -> Origin:
    """What the files of the lenders remember: which rows they were trained on, and which not."""
    tables = (
        _labelled(data.frame_train, data, data.y_train),
        _labelled(data.frame_test, data, data.y_test),
    )
    trained, held_out = (
        row_marks(table.drop(columns=DECISION), table[DECISION]) for table in tables
    )
    return Origin(DECISION, data.class_names[TARGET], {}, trained, held_out)


def _advice(plan: DemoPlan, lenders: dict[str, CounterfactualClassifier]) -> pd.DataFrame:
    """What a young, a middle-aged and an old refused applicant are told."""
    data = plan.data
    refused = data.frame_test[data.y_test.numpy() != TARGET].sort_values("age", kind="stable")
    people = refused.iloc[(np.array(PEOPLE) * (len(refused) - 1)).round().astype(int)]
    out = people.reset_index(drop=True)
    for training, classifier in lenders.items():
        explanation = classifier.explain(
            people, data.class_names[TARGET], max_steps=SEARCH_STEPS
        )
        out[training] = [sentence.split(": ", 1)[1] for sentence in explanation.changes()]
        out[f"{training}_debt"] = explanation.frame["debt"].to_numpy()
        out[f"{training}_status"] = explanation.status
    return out


def debt_per_year(data: Dataset, model: nn.Module) -> float:
    """How many thousand dollars of debt count as much as a year of age for a linear classifier."""
    weight = next(model.parameters()).detach().double()
    per_unit = (weight[TARGET] - weight[1 - TARGET]) / torch.tensor(
        [c.scale for c in encoder_of(data).columns_]
    )
    return float((per_unit[0] / per_unit[1]).abs())


def _settings(plan: DemoPlan) -> dict[str, Any]:
    data = plan.data
    generator = plan.method.searcher
    objective = vars(plan.method.objective)
    config = vars(plan.method.training)
    network = "neural network with one hidden layer of 32 units"
    search = ("decision_threshold", "max_steps", "epsilon")
    weights = ("lambda_class", "lambda_div", "lambda_reg", "lambda_adv")
    training = (
        "epochs",
        "batch_size",
        "learning_rate",
        "num_counterfactuals",
        "burn_in",
        "seed",
    )
    return {
        "title": data.title,
        "model": "linear classifier" if plan.make_model is linear else network,
        "train_rows": len(data.y_train),
        "test_rows": len(data.y_test),
        "protected": list(data.protected_names),
        "generator": generator.name,
        "search_learning_rate": generator.learning_rate,
        **{name: generator.numbers()[name] for name in search},
        **{name: objective[name] for name in weights},
        **{name: config[name] for name in training},
    }

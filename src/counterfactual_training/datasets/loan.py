"""The loan example of Figure 1 as a data set: *age* and *debt* of people who apply for a loan."""

from __future__ import annotations

from dataclasses import replace

import torch

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset, PaperSettings
from counterfactual_training.datasets.synthetic import DATA_SEED, LOAN_CLASSES, LOAN_ORIGIN, LOAN_SCALE, loan
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.schema import Schema

LOAN_TITLE = "Loan applicants of Figure 1"
LOAN_SCHEMA = Schema((Feature("age", "integer", unit="years"), Feature("debt", "numeric", unit="thousand dollars")))


def loan_dataset(num_train: int = 1000, num_test: int = 400, seed: int = DATA_SEED) -> Dataset:
    """Applicants in the user's units; in model space, the blobs of ``linearly_separable``, as in the paper."""
    sample = loan(num_train + num_test, torch.Generator().manual_seed(seed))
    train = sample.frame.iloc[:num_train]
    test = sample.frame.iloc[num_train:].reset_index(drop=True)
    encoder = Encoder(LOAN_SCHEMA).fit(train)
    # The scale of the sampler instead of z-scores. Standardising would make *age* as informative as *debt*.
    # Counterfactuals with a fixed age would then overshoot the debts of class "loan granted", and protecting age would
    # make the model less sensitive to debt, not more.
    scales = zip(encoder.columns_, LOAN_ORIGIN, LOAN_SCALE, strict=True)
    encoder.columns_ = [replace(column, center=center, scale=scale) for column, center, scale in scales]
    x_train, x_test = (torch.from_numpy(encoder.transform(part)).float() for part in (train, test))
    constraints = Constraints.infer(x_train, names=LOAN_SCHEMA.names)
    return Dataset(
        name="loan",
        title=LOAN_TITLE,
        variant="default",
        x_train=x_train,
        y_train=sample.y[:num_train],
        x_test=x_test,
        y_test=sample.y[num_train:],
        class_names=LOAN_CLASSES,
        feature_names=LOAN_SCHEMA.names,
        schema=LOAN_SCHEMA,
        encoder=encoder,
        constraints=constraints,
        training_constraints=constraints,
        protected=(0,),
        settings=PaperSettings(50, 0.75, 0.01, 1000, num_validation=0),
        _frames=(train, test),
    )

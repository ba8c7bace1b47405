"""What training does about a loss that is no number, and about input that does not fit."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from counterfactual_training import (
    Callback,
    Constraints,
    Method,
    methods,
    mlp,
    train,
)
from counterfactual_training.errors import ConstraintError, InputError, ModelError
from counterfactual_training.training.run import Run

QUICK = methods.ct_published(
    epochs=3, batch_size=20, num_counterfactuals=12, learning_rate=0.01
)

SHORT = {"ct_published": QUICK, "conventional": QUICK.conventional()}


def with_changes(**changes) -> Method:
    return QUICK.replace(changes)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat(
        [value.detach().flatten().double() for value in model.state_dict().values()]
    )


def fresh() -> nn.Module:
    torch.manual_seed(0)
    return mlp(2, 2, hidden=(8,))


# ---- a loss that is no number --------------------------------------------------------------------


class Faulty(nn.Sequential):
    """Returns NaN in chosen training forwards."""

    def __init__(self, faulty) -> None:
        super().__init__(nn.Linear(2, 2))
        self.faulty, self.calls = faulty, 0

    def forward(self, x):
        logits = super().forward(x)
        if self.training:
            self.calls += 1
            if self.faulty(self.calls):
                return logits * torch.nan
        return logits


def test_a_bad_update_is_skipped_and_counted(blobs):
    x, y = blobs
    torch.manual_seed(0)
    model = Faulty(lambda call: call in (2, 6, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        frame = train(model, x, y, QUICK).history.to_frame()
    assert frame["skipped"].tolist() == [1, 1, 1] and bool(torch.isfinite(weights(model)).all())
    assert frame["loss"].notna().all(), "the means are over the updates made"


def test_skipping_leaves_the_weights_alone(blobs):
    x, y = blobs
    torch.manual_seed(0)
    model = Faulty(lambda call: True)
    before = weights(model)
    train(model, x, y, with_changes(epochs=1))
    assert torch.equal(weights(model), before)


def test_bad_updates_with_good_ones_between_do_not_stop_training(blobs):
    x, y = blobs
    torch.manual_seed(0)
    model = Faulty(lambda call: call % 2 == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        history = train(model, x, y, with_changes(epochs=4, max_bad_updates=2)).history
    assert history.stopped is None and sum(record["skipped"] for record in history.records) == 6


@pytest.mark.parametrize("batch_size", [1, 20])
def test_many_bad_updates_in_a_row_stop_training(blobs, batch_size):
    """Also where an epoch is shorter than the count."""
    x, y = blobs
    torch.manual_seed(0)
    model = Faulty(lambda call: call > 60 // batch_size)
    copies = []

    class Remember(Callback):
        def on_epoch_end(self, run: Run) -> None:
            copies.append(weights(run.model))

    method = with_changes(
        epochs=50, max_bad_updates=7, batch_size=batch_size, num_counterfactuals=60
    )
    with pytest.warns(
        UserWarning,
        match=r"Training stopped.*7 updates in a row had a non-finite loss.*sound epoch",
    ):
        history = train(model, x, y, method, callbacks=[Remember()]).history
    assert "7 updates in a row" in history.stopped and len(history.records) < 6
    assert sum(record["skipped"] for record in history.records) == 7
    assert torch.equal(weights(model), copies[0]), (
        "the weights of the last sound epoch are not the ones kept"
    )


@pytest.mark.parametrize("refresh", ["epoch", "batch"])
@pytest.mark.parametrize("name", ["ct_published", "conventional"])
def test_weights_that_leave_for_infinity_are_not_kept(blobs, refresh, name):
    x, y = blobs
    model = fresh()
    before = weights(model)
    method = SHORT[name].replace({"epochs": 30, "refresh": refresh})
    with pytest.warns(
        UserWarning, match=r"Training stopped after epoch \d+.*last sound epoch"
    ) as told:
        history = train(
            model,
            x,
            y,
            method,
            optimizer=lambda p: torch.optim.SGD(p, lr=1e30),
        ).history
    assert history.stopped and torch.equal(weights(model), before)
    assert f"after epoch {len(history.records)}: {history.stopped}." in str(told[0].message)


# ---- bad input -----------------------------------------------------------------------------------


def nan_at(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[3, 1] = torch.nan
    return x


BAD_INPUT = {
    "one class only": (
        lambda x, y: (x, torch.zeros_like(y)),
        r"at least two classes; found \[0\]",
    ),
    "a class left out": (
        lambda x, y: (x, y * 2),
        r"every class index 0\.\.k−1.*found \[0, 2\]",
    ),
    "negative class": (lambda x, y: (x, y - 1), r"found \[-1, 0\]"),
    "NaN": (lambda x, y: (nan_at(x), y), r"column\(s\) 1, 1 row"),
    "lengths": (lambda x, y: (x, y[:-1]), r"\(60, 2\) and y \(59,\)"),
    "no rows": (lambda x, y: (x[:0], y[:0]), "needs rows"),
    "classes as floats": (lambda x, y: (x, y.float()), r"y\.long\(\)"),
    "features as integers": (lambda x, y: (x.long(), y), "floating point"),
    "dtype": (lambda x, y: (x.double(), y), "torch.float64 but the model torch.float32"),
    "device": (lambda x, y: (x.to("meta"), y), "x is on meta"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused_before_anything_happens(blobs, name):
    change, message = BAD_INPUT[name]
    model = fresh()
    before = weights(model)
    with pytest.raises(InputError, match=message):
        train(model, *change(*blobs), QUICK)
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)), "outputs are probabilities"),
        (nn.Linear(2, 1), "one column"),
        (nn.Linear(2, 3), "returns 3 columns but the data has 2 classes"),
        (nn.Flatten(0), "expected logits"),
    ],
)
def test_models_that_are_no_classifiers_are_refused(blobs, model, message):
    with pytest.raises(ModelError, match=message):
        train(model, *blobs, QUICK)


def test_a_validation_set_that_does_not_fit_is_refused_at_once(blobs):
    x, y = blobs
    model = fresh()
    before = weights(model)
    with pytest.raises(InputError, match=r"\(60, 2\) and y \(59,\)"):
        train(model, x, y, QUICK, validation=(x, y[:-1]))
    assert torch.equal(weights(model), before)


def test_no_validation_rows_have_no_accuracy(blobs):
    x, y = blobs
    history = train(fresh(), x, y, QUICK, validation=(x[:0], y[:0])).history
    assert history.to_frame()["validation_accuracy"].isna().all()


class Miscounted(list):
    """Batches of rows that are said to be three."""

    def __len__(self):
        return 3


@pytest.mark.parametrize(("batches", "word"), [(2, "fewer"), (4, "more")])
@pytest.mark.parametrize("name", ["ct_published", "conventional"])
def test_a_loader_of_a_wrong_length_is_refused_in_words(blobs, batches, word, name):
    sampler = Miscounted([[i, 59 - i] for i in range(batches)])
    loader = DataLoader(TensorDataset(*blobs), batch_sampler=sampler)
    with pytest.raises(InputError, match=rf"gives {word} batches than its len\(\), 3"):
        train(fresh(), loader, method=SHORT[name])


def test_constraints_that_do_not_fit_are_refused_at_once(blobs):
    """Not after a long burn-in."""
    x, y = blobs
    method = with_changes(burn_in=1.0)
    with pytest.raises(ConstraintError, match="3 features, x has 2"):
        train(fresh(), x, y, method, constraints=Constraints.build(3))
    with pytest.raises(ConstraintError, match="lie outside the domain of 'feature 0'"):
        train(fresh(), x, y, method, constraints=Constraints.build(2, domain={0: (0, 0.1)}))


def test_a_model_that_was_never_sound_is_an_error_not_a_warning(blobs):
    """Rows beyond those looked at first: nothing was trained, so nothing diverged."""
    x, y = blobs
    x, y = torch.cat([x, x]), torch.cat([y, y])

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, rows):
            return self.layer(rows) * (torch.nan if len(rows) > 64 else 1.0)

    with pytest.raises(ModelError, match="NaN"):
        train(Late(), x, y, with_changes(num_counterfactuals=100))

"""Where lone runs and fleets used to part: rows of one's own, members that end, late hooks, odd
gradients.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import (
    Callback,
    ClipGradient,
    EarlyStopping,
    Objective,
    methods,
    mlp,
    train,
)
from counterfactual_training.errors import InputError
from counterfactual_training.training.fleet import Fleet, Member

QUICK = methods.ct_published(
    epochs=3, batch_size=20, num_counterfactuals=12, learning_rate=0.01
)


def rows(seed=0, num=60):
    x = torch.randn(num, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + 0.3 * x[:, 1] > 0).long()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def dropping():
    return nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 2))


class Doubled(Objective):
    def __call__(self, model, x, y, explanations=None, weight=None):
        terms = super().__call__(model, x, y, explanations, weight)
        return type(terms)(**{**vars(terms), "total": 2 * terms.total})


@pytest.mark.filterwarnings("ignore:.*one by one", "ignore:.*trains alone", "ignore:.*alone")
@pytest.mark.parametrize("why", ["dropout", "own objective", "fleet of one"])
def test_members_that_train_alone_may_have_rows_of_their_own(why):
    count = 1 if why == "fleet of one" else 2
    parts = [rows(seed) for seed in range(count)]
    x, y = torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts])
    objective = Doubled() if why == "own objective" else Objective()
    torch.manual_seed(0)
    models = [dropping() if why == "dropout" else mlp(2, 2, (5,)) for _ in range(count)]
    twins = [copy.deepcopy(model) for model in models]
    method = QUICK.replace("objective", objective)
    results = Fleet([Member(model, method) for model in models]).train(x, y, validation=(x, y))
    for i, twin in enumerate(twins):
        alone = train(twin, x[i], y[i], method, validation=(x[i], y[i]))
        assert_close(weights(results[i].model), weights(twin))
        assert results[i].history.last("validation_accuracy") == alone.history.last(
            "validation_accuracy"
        )
        assert results[i].history.last("validation_loss") == pytest.approx(
            alone.history.last("validation_loss"), 1e-4
        )


class Break(Callback):
    """Makes member 1 unusable after the first epoch, or stops it within the second."""

    def __init__(self, how):
        self.how, self.updates = how, 0

    def on_epoch_end(self, run):
        if self.how == "breaks" and run.epoch == 1:
            run.parameters[0].data[1] = 1e38

    def on_batch_end(self, run):
        self.updates += 1
        if self.how == "is stopped" and self.updates == 4:
            run.stop("enough", 1)


@pytest.mark.filterwarnings("ignore:Member 1 of the fleet stopped")
@pytest.mark.parametrize("refresh", ["epoch", "batch"])
@pytest.mark.parametrize("how", ["breaks", "is stopped"])
def test_a_conventional_member_trains_on_when_the_last_searching_one_ends(how, refresh):
    x, y = rows()
    method = QUICK.replace("refresh", refresh)
    torch.manual_seed(0)
    models = [mlp(2, 2, (5,)) for _ in range(2)]
    twin = copy.deepcopy(models[0])
    chosen = [method.conventional(), method]
    members = [Member(model, own) for model, own in zip(models, chosen, strict=True)]
    results = Fleet(members).train(x, y, callbacks=[Break(how)])
    alone = train(twin, x, y, chosen[0])
    assert_close(weights(results[0].model), weights(twin), atol=1e-5, rtol=1e-4)
    assert results[0].history.to_frame()["loss"].tolist() == pytest.approx(
        alone.history.to_frame()["loss"].tolist(), rel=1e-4
    )
    assert results[1].history.stopped is not None


class Infinite(Objective):
    def __call__(self, *given):
        terms = super().__call__(*given)
        return replace(terms, total=terms.total + torch.inf)


@pytest.mark.parametrize("how", ["autograd", "by hand"])
def test_an_update_without_a_finite_loss_is_left_out_though_its_gradient_is_finite(how):
    """By hand: logits so large that their squares, and with them the ridge, overflow."""
    x, y = rows()
    torch.manual_seed(0)
    model = mlp(2, 2, (5,))
    objective = Infinite() if how == "autograd" else Objective(lambda_class=0.0, lambda_adv=0.0)
    if how == "by hand":
        with torch.no_grad():
            model[-1].bias += 1e25
    before = weights(model)
    history = train(model, x, y, QUICK.replace({"epochs": 1, "objective": objective})).history
    assert torch.equal(weights(model), before) and history.last("skipped") == 3


class Late(Callback):
    """Registers hooks when training begins."""

    def __init__(self, where):
        self.where, self.calls = where, 0

    def on_train_begin(self, run):
        if self.where == "parameter":
            run.parameters[0].register_hook(self.hear)
        else:
            run.model.register_forward_hook(lambda *_: self.hear(None))

    def hear(self, grad):
        self.calls += 1
        return grad


@pytest.mark.parametrize("where", ["parameter", "model"])
def test_hooks_registered_when_training_begins_are_called(where):
    late = Late(where)
    train(mlp(2, 2, (5,)), *rows(), QUICK.conventional(), callbacks=[late])
    assert late.calls >= 9


class Freeze(Callback):
    def before_step(self, run):
        run.model[0].weight.grad = None


def test_a_parameter_without_a_gradient_stays_as_it_is():
    torch.manual_seed(0)
    model = mlp(2, 2, (5,))
    first, last = model[0].weight.detach().clone(), model[-1].weight.detach().clone()
    train(model, *rows(), QUICK, callbacks=[Freeze()])
    assert torch.equal(model[0].weight, first) and not torch.equal(model[-1].weight, last)


def test_large_gradients_in_half_precision_are_finite():
    x, y = rows()
    models = [mlp(2, 2, (5,)).half() for _ in range(2)]
    method = QUICK.conventional().replace("lambda_class", 3000.0)
    results = Fleet([Member(model, method) for model in models]).train(x.half(), y)
    assert all(result.history.to_frame()["skipped"].sum() == 0 for result in results)


class KeepsFrozen(nn.Sequential):
    """Its batch normalisation stays as it is, whatever mode is asked for."""

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.filterwarnings("ignore:The model came in eval mode")
def test_a_model_that_freezes_parts_by_itself_is_taken_at_its_word():
    model = KeepsFrozen(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    before = model[1].running_mean.clone()
    train(model, *rows(), QUICK)
    assert torch.equal(model[1].running_mean, before)


def test_what_cannot_be_heeded_is_refused_in_words():
    x, y = rows()
    model = mlp(2, 2, (5,))
    with pytest.raises(InputError, match="LBFGS computes its gradients itself"):
        train(model, x, y, QUICK, optimizer=torch.optim.LBFGS, callbacks=[ClipGradient(1.0)])
    with pytest.raises(InputError, match=r"write \[callback\]"):
        train(model, x, y, QUICK, callbacks=ClipGradient(1.0))
    with pytest.raises(InputError, match="whole number of epochs"):
        EarlyStopping(patience=2.5)
    with pytest.raises(InputError, match=r"torch\.as_tensor"):
        train(model, x.numpy(), np.asarray(y), QUICK)

    class StopAnother(Callback):
        def on_epoch_end(self, run):
            run.stop("wrong", 3)

    with pytest.raises(InputError, match=r"members 0\.\.0, not 3"):
        train(model, x, y, QUICK, callbacks=[StopAnother()])

"""What a training run refuses before it starts, and what it leaves alone."""

import pytest
import torch
from torch import nn

import counterfactual_training as ct
from counterfactual_training.errors import InputError, ModelError

SHORT = ct.methods.ct_published(epochs=1, num_counterfactuals=20)


def test_names_stand_for_generators(blobs):
    x, y = blobs
    named, built = ct.mlp(2, 2), ct.mlp(2, 2)
    built.load_state_dict(named.state_dict())
    ct.train(named, x, y, SHORT.replace("generator", "generic"))
    ct.train(built, x, y, SHORT.replace("generator", ct.generic()))
    assert all(
        torch.equal(a, b) for a, b in zip(named.parameters(), built.parameters(), strict=True)
    )
    with pytest.raises(InputError, match="Did you mean 'ecco'"):
        ct.train(named, x, y, SHORT.replace("generator", "eco"))


def test_validation_rows_are_checked_before_the_first_epoch(blobs):
    x, y = blobs
    with pytest.raises(ModelError, match="input of shape"):
        ct.train(ct.mlp(2, 2), x, y, SHORT, validation=(torch.randn(5, 3), y[:5]))
    with pytest.raises(InputError, match=r"Classes must lie in 0\.\.1"):
        ct.train(ct.mlp(2, 2), x, y, SHORT, validation=(x, y + 5))


def test_an_optimizer_of_another_model_is_refused(blobs):
    with pytest.raises(InputError, match="none of this model's parameters"):
        ct.train(
            ct.mlp(2, 2),
            *blobs,
            SHORT,
            optimizer=torch.optim.SGD(ct.mlp(2, 2).parameters(), lr=0.1),
        )


def test_a_model_of_other_features_is_refused_with_the_shapes(blobs):
    with pytest.raises(ModelError, match=r"input of shape \(60, 2\)"):
        ct.train(ct.mlp(3, 2), *blobs, SHORT)


def test_a_model_without_gradients_is_refused(blobs):
    class Steps(nn.Module):
        def forward(self, x):
            return torch.stack([(x[:, 0] > 0).float() * 3, (x[:, 1] > 0).float() * 3 - 1], -1)

    with pytest.raises(ModelError, match="differentiably"):
        ct.search(Steps(), blobs[0], 1 - Steps()(blobs[0]).argmax(-1))


def test_frozen_parts_of_a_model_stay_frozen(blobs):
    norm = nn.BatchNorm1d(2).eval()
    model = nn.Sequential(norm, ct.mlp(2, 2))
    model.training = True
    before = norm.running_mean.clone()
    ct.train(model, *blobs, SHORT)
    assert torch.equal(norm.running_mean, before)
    assert not model.training


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="learning_rate"):
        ct.methods.ct_published(learning_rate=float("nan"))
    with pytest.raises(InputError, match="lambda_reg"):
        ct.Objective(lambda_reg=-1.0)
    with pytest.raises(InputError, match="epochs"):
        ct.methods.ct_published(epochs=True)


def test_a_stated_range_joins_an_inferred_box(blobs):
    x, _ = blobs
    box = ct.Constraints.infer(x, domain={"b": (-9.0, None)}, names=["a", "b"]).domain
    plain = ct.Constraints.infer(x).domain
    assert box.stated.tolist() == [False, True]
    assert (
        float(box.lower[1]) == -9.0
        and torch.equal(box.upper, plain.upper)
        and box.lower[0] == plain.lower[0]
    )


def test_factuals_already_there_do_not_count_as_kept_counterfactuals(blobs):
    x, y = blobs
    model = ct.mlp(2, 2)
    printed = ct.methods.ct_as_printed(epochs=2, num_counterfactuals=40)
    assert printed.training.target_rule == "uniform" and printed.training.immature == "keep"
    result = ct.train(model, x, y, printed.replace({"refresh": "epoch", "shuffle": False}))
    assert all(
        torch.isfinite(torch.tensor(record["divergence"])) for record in result.history.records
    )

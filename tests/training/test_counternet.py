"""CounterNet: its loss, who learns from which part of it, what its answers keep to, and whom it
refuses.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.evaluation.protocol import PAIRED
from counterfactual_training.evaluation.stepfree import Rescaled
from counterfactual_training.models.counternet import feasible
from counterfactual_training.models.shapes import describe, make_network
from counterfactual_training.training import methods
from counterfactual_training.training.objective import Batch

RULES = ct.Constraints.build(
    6, {0: "none", 1: "increase"}, domain={2: (-1.0, 1.0)}, groups=[(3, 4, 5)]
)


def rows(num: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Three numbers and a category of three; all that may change tells the classes apart."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(num) % 2
    numbers = torch.randn(num, 3, generator=rng) * 0.5 + torch.tensor([0.0, 1.0, 0.6]) * (
        2.0 * y[:, None] - 1
    )
    category = torch.where(torch.rand(num, generator=rng) < 0.8, 2 * y, 1)
    return torch.cat(
        [
            numbers.clamp(max=1.0).clamp(min=-1),
            torch.nn.functional.one_hot(category, 3).float(),
        ],
        1,
    ), y


def network(dropout: float = 0.0, **shape) -> ct.CounterNet:
    torch.manual_seed(0)
    return ct.counternet(6, dropout=dropout, **shape)


def gradients(model: ct.CounterNet, total: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    total.backward()
    return {
        name: torch.zeros(()) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


def test_the_loss_is_its_formula_where_nothing_is_constrained():
    (x, y), model, free = rows(), network().double(), ct.Constraints.build(6)
    x = x.double()
    logits, x_cf = model(x, propose=True)
    p, after = logits.softmax(-1)[:, 1], model(x_cf).softmax(-1)[:, 1]
    parts = (
        (p - y).square().mean(),
        (x_cf - x).square().mean(),
        (after - (1 - p.round())).square().mean(),
    )
    for second in ("explainer", "all"):
        terms = methods.counternet(2.0, 0.5, 0.25, second).loss(model, Batch(x, y), free.to(x))
        assert_close(terms.total, 2.0 * parts[0] + 0.5 * parts[1] + 0.25 * parts[2])
        assert_close(terms.class_loss, 2.0 * parts[0])


def test_advice_does_not_move_decisions_unless_asked_to():
    """The explainer's gradients are those of λ₂ and λ₃; encoder and predictor see λ₁ alone, or
    everything.
    """
    (x, y), model, rules = rows(), network().double(), RULES
    x, rules = x.double(), rules.to(x.double())
    only, whole = (
        methods.counternet(1.0, 0.3, 0.7, second).loss for second in ("explainer", "all")
    )
    separate = gradients(model, only(model, Batch(x, y), rules).total)
    joint = gradients(model, whole(model, Batch(x, y), rules).total)
    fit = gradients(model, (model(x).softmax(-1)[:, 1] - y).square().mean())
    for name in separate:
        if name.startswith("explainer"):
            assert_close(separate[name], joint[name])
            assert bool(separate[name].any())
        else:
            assert_close(separate[name], fit[name])
            assert not torch.allclose(joint[name], fit[name])


@pytest.mark.check
def test_answers_keep_to_the_rules_and_are_valid_after_training():
    x, y = rows(400)
    model = network(dropout=0.3)
    method = ct.methods.counternet(epochs=30, batch_size=50, learning_rate=0.01)
    ct.train(model, x, y, method, constraints=RULES)
    x_cf, predicted = model.explain(x, RULES), model(x).argmax(-1)
    assert float((predicted == y).float().mean()) > 0.9
    assert float((model(x_cf).argmax(-1) != predicted)[predicted == 0].float().mean()) > 0.9
    assert not RULES.violations(x_cf, x).any()
    assert set(x_cf[:, 3:].flatten().tolist()) == {0.0, 1.0} and bool(
        (x_cf[:, 3:].sum(-1) == 1).all()
    )
    assert torch.equal(x_cf[:, 0], x[:, 0]) and not torch.equal(x_cf[:, 2], x[:, 2])
    # As an explainer of evaluate, also behind a factor of the logits; in training mode before and
    # after.
    quick = replace(PAIRED, lambda_energy=(1.0,), langevin_steps=0, attacks=("fgsm",))
    model.train()
    explainers = {"own": ct.counternet_explainer, "line": ct.line()}
    for one in (model, Rescaled(model, 2.0)):
        means = ct.summarise(ct.evaluate(one, (x, y), quick, RULES, explainers=explainers))
        assert means["own", "violations"] == 0.0 and means["own", "validity"] > 0.5
    assert model.training


def test_projection_keeps_gradients_outside_the_box():
    x = torch.zeros(1, 6)
    x[0, 3] = 1.0
    proposal = torch.tensor([[1.0, -1.0, 5.0, 0.0, 0.0, 0.0]], requires_grad=True)
    soft, x_cf = feasible(proposal, x, RULES)
    assert_close(x_cf.detach(), torch.tensor([[0.0, 0.0, 1.0, 1 / 3, 1 / 3, 1 / 3]]))
    assert float(soft[0, 2].detach()) == 5.0
    x_cf[0, :3].sum().backward()
    assert proposal.grad[0, :3].tolist() == [0.0, 1.0, 1.0]


def test_bad_input_is_refused_before_training():
    x, y = rows()
    with pytest.raises(
        ModelError, match=r"network of its own, got Sequential: pass ct.counternet\(6\)"
    ):
        ct.train(ct.mlp(6, 2), x, y, "counternet")
    three = torch.arange(len(y)) % 3
    with pytest.raises(InputError, match="two classes, got 3"):
        ct.train(ct.mlp(6, 3), x, three, "counternet")
    with pytest.raises(InputError, match="two classes, got 3"):
        ct.counternet(6, 3)
    with pytest.raises(InputError, match="validity must be a finite number"):
        ct.methods.counternet(validity=-1.0)
    with pytest.raises(InputError, match="'explainer'"):
        ct.methods.counternet(second="explainers")
    with pytest.raises(ModelError, match="Only a CounterNet answers by itself, got Sequential"):
        ct.counternet_explainer(ct.mlp(6, 2), x, 1 - y)


def test_a_fleet_with_dropout_trains_one_by_one_and_ends_as_alone():
    x, y = rows()
    method = ct.methods.counternet(epochs=2, constraints=RULES)
    fleet, alone = network(0.3), network(0.3)
    other = network(0.3)
    with pytest.warns(UserWarning, match="one by one"):
        ct.Fleet([ct.Member(fleet, method), ct.Member(other, method.seeded(5))]).train(x, y)
    ct.train(alone, x, y, method)
    assert all(
        torch.equal(a, b) for a, b in zip(fleet.parameters(), alone.parameters(), strict=True)
    )


def test_half_precision_trains_and_answers():
    x, y = rows()
    model, before = network().bfloat16(), network().bfloat16()
    method = ct.methods.counternet(epochs=1, batch_size=50, shuffle=False, learning_rate=1e-3)
    ct.train(model, x.bfloat16(), y, method, constraints=RULES)
    assert not torch.equal(model.explainer[0].weight, before.explainer[0].weight)
    assert model.explain(x.bfloat16(), RULES).dtype == torch.bfloat16


def test_a_file_describes_it():
    model = network(0.1, encoder=(8, 4), squash=True)
    twin = make_network(describe(model), 6, 2)
    twin.load_state_dict(model.state_dict())
    x, _ = rows()
    assert torch.equal(twin.eval().explain(x, RULES), model.eval().explain(x, RULES))
    assert repr(twin) == repr(model)


def test_the_classifier_makes_the_network_explains_and_is_saved(tmp_path):
    loan = ct.loan(300)
    classifier = ct.CounterfactualClassifier(
        method="counternet(epochs=5)", mutability={}, progress=False
    )
    classifier.fit(loan.frame, loan.labels)
    assert isinstance(classifier.model_, ct.CounterNet)
    classifier.save(tmp_path / "loan.safetensors")
    loaded = ct.CounterfactualClassifier.load(tmp_path / "loan.safetensors")
    assert (
        loaded.predict(loan.frame[:50]).tolist() == classifier.predict(loan.frame[:50]).tolist()
    )
    assert ct.make_method(loaded.method).name == "counternet"
    assert isinstance(loaded.model_, ct.CounterNet)
    assert len(loaded.explain(loan.frame[:3])) == 3
    for stated, message in (
        ({"model": "tabm"}, "model='tabm' has no effect"),
        ({"hidden": (3,)}, r"hidden=\(3,\) has no effect"),
        ({"scaling": "quantile"}, "not 'quantile'"),
    ):
        with pytest.raises(InputError, match=message):
            ct.CounterfactualClassifier(method="counternet", mutability={}, **stated).fit(
                loan.frame, loan.labels
            )
    labels = [i % 3 for i in range(len(loan.frame))]
    with pytest.raises(InputError, match="two classes, got 3"):
        ct.CounterfactualClassifier(method="counternet", mutability={}).fit(loan.frame, labels)

"""The loop: what it minimises, what it says of each row, what it refuses."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from counterfactual_training import Constraints, Generator, ecco, generic, linear, mlp, search
from counterfactual_training.constraints import Lattice
from counterfactual_training.errors import ConstraintError, InputError, ModelError
from counterfactual_training.generators import evaluating
from counterfactual_training.generators.model_checks import check_finite, first_logits
from made import LargestMade


@pytest.fixture
def model() -> nn.Module:
    """Two features, three classes, some slope."""
    torch.manual_seed(3)
    model = mlp(2, 3, hidden=(8,))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


X = torch.tensor([[0.5, -1.0], [1.5, 0.25], [-0.75, 0.5], [2.0, 2.0]])
TARGET = torch.tensor([0, 1, 2, 1])


def test_one_step_is_gradient_descent_on_eq_1():
    """On a linear model, by hand: x′ = x − η·Θᵀ(softmax(Θx + b) − onehot(y⁺)); at x the distance
    has no slope.
    """
    torch.manual_seed(0)
    model = linear(2, 3)
    weight = model[0].weight.detach()
    y_target = (model(X).argmin(-1)).detach()
    result = search(
        model, X, y_target, generic(0.1, learning_rate=0.2, max_steps=1, decision_threshold=1.0)
    )
    residual = (X @ weight.T).softmax(-1) - nn.functional.one_hot(y_target, 3)
    assert_close(result.x_cf, X - 0.2 * residual @ weight)
    assert result.num_steps.tolist() == [1] * 4


def test_many_steps_equal_a_loop_by_hand(model):
    """The whole descent, re-told naively for one row with autograd on the full loss."""
    generator = ecco(
        0.05, 5.0, learning_rate=0.1, max_steps=25, decision_threshold=0.9, epsilon=0.2
    )
    rules = Constraints.build(2, ["both", "increase"], (-3, 3))
    result = search(model, X, TARGET, generator, rules)
    for row in range(len(X)):
        x, target = X[row], int(TARGET[row])
        x_cf, x_adv, steps = x.clone(), x.clone(), 0
        there = int(model(x).argmax()) == target
        while (
            not there and float(model(x_cf).softmax(-1)[target].detach()) < 0.9 and steps < 25
        ):
            leaf = x_cf.clone().requires_grad_()
            logits = model(leaf)
            energy = -logits[target]
            phi = 0.1 * (1 + steps + 1) ** -0.9
            loss = -logits.log_softmax(-1)[target] + 5.0 * phi * (energy + 1e-3 * energy**2)
            loss = loss + 0.05 * (leaf - x).abs().sum()
            (grad,) = torch.autograd.grad(loss, leaf)
            step = -0.1 * grad
            step[1] = max(step[1], 0.0)
            x_cf = (x_cf + step).clamp(-3, 3)
            steps += 1
            if float((x_cf - x).abs().max()) <= 0.2:
                x_adv = x_cf
        assert int(result.num_steps[row]) == steps
        assert_close(result.x_cf[row], x_cf.detach(), atol=1e-4, rtol=1e-4)
        assert_close(result.x_adv[row], x_adv.detach(), atol=1e-4, rtol=1e-4)


def test_already_there_is_returned_unchanged_with_zero_steps(model):
    y_target = model(X).argmax(-1)
    result = search(model, X, y_target, ecco(decision_threshold=0.9999))
    assert result.status_names == ["already_there"] * 4
    assert (
        torch.equal(result.x_cf, X)
        and torch.equal(result.x_adv, X)
        and result.num_steps.tolist() == [0] * 4
    )
    confidence = model(X).softmax(-1).gather(1, y_target[:, None])[:, 0]
    assert torch.equal(result.converged, confidence >= 0.9999)


def with_logits(*logits: float) -> nn.Module:
    """A linear model of one feature that gives these logits at 0, and rises with the feature in
    class 1.
    """
    model = linear(1, len(logits))
    with torch.no_grad():
        model[0].weight.zero_()[1] = 1.0
        model[0].bias.copy_(torch.tensor(logits))
    return model


def test_already_there_by_the_threshold_too():
    """τ below a half: class 1 has probability 0.35, enough for τ = 0.3 though class 0 is the
    predicted one.
    """
    model, x = with_logits(*np.log([0.4, 0.35, 0.25])), torch.zeros(1, 1)
    result = search(model, x, torch.tensor([1]), generic(decision_threshold=0.3))
    assert result.status_names == ["already_there"] and result.num_steps.tolist() == [0]
    assert torch.equal(result.x_cf, x) and bool(result.converged)
    assert search(
        model, x, torch.tensor([1]), generic(decision_threshold=0.38)
    ).status_names == ["converged"]


def test_a_threshold_of_one_can_be_met():
    """A saturated model gives probability 1 exactly; that is τ, not below it."""
    model = linear(1, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-100.0], [100.0]]))
        model[0].bias.zero_()
    result = search(
        model, torch.tensor([[-0.01]]), torch.tensor([1]), generic(decision_threshold=1.0)
    )
    assert result.status_names == ["converged"] and result.num_steps.tolist() == [1]
    assert float(result.confidence) == 1.0 and bool(result.converged)


@pytest.mark.parametrize("step_rule", ["fixed", "line"])
def test_probability_at_the_threshold_is_enough(step_rule):
    """Two classes of probability ½ each: class 0 is predicted, and class 1 has τ = ½ exactly."""
    generator = generic(decision_threshold=0.5).replace(step_rule=step_rule)
    result = search(with_logits(0.0, 0.0), torch.zeros(1, 1), torch.tensor([1]), generator)
    assert result.status_names == ["already_there"] and bool(result.converged)


def test_a_snap_is_no_update():
    """By hand: feature 0 is an integer, feature 1 is free; a look that snaps the row makes no
    update.
    """
    weight, eta, tau = torch.tensor([1.0, 0.5]), 0.5, 0.8
    model = linear(2, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.stack([torch.zeros(2), weight]))
        model[0].bias.copy_(torch.tensor([0.0, -1.0]))
    x = torch.stack(
        [torch.tensor([-2.0, 0.0, -4.0, -3.0]), torch.tensor([0.3, 1.2, -1.0, 4.8])], -1
    )
    rules = Constraints.build(2, domain={0: (-5, 0.5)}, lattices=[Lattice(0)])
    settings = {"learning_rate": eta, "decision_threshold": tau, "max_steps": 100}
    result = search(
        model, x, torch.ones(4, dtype=torch.long), Generator("plain", **settings), rules
    )
    counts, snaps = [], []
    for row in x:
        here, steps, snapped, worth = row.clone(), 0, False, True
        while True:
            p = float(torch.sigmoid(weight @ here - 1))
            if p >= tau and snapped:
                break
            if p >= tau:
                here, snapped = rules.snap(here[None], row[None])[0], True
                worth = float(torch.sigmoid(weight @ here - 1)) >= tau
                continue
            step = eta * (1 - p) * weight
            here, steps = (
                here + (step * torch.tensor([0.0, 1.0]) if snapped else step),
                steps + 1,
            )
            here[0] = here[0].clamp(-5, 0.5)
        counts.append(steps)
        snaps.append(worth)
    assert result.num_steps.tolist() == counts and result.status_names == ["converged"] * 4
    assert set(snaps) == {True, False}, (
        "the test needs rows that lose τ by the snap, and rows that do not"
    )


def test_a_flat_model_holds_nobody_back():
    """Without a slope no feature wants to move, so none is blocked: out of steps, not
    infeasible.
    """
    model = linear(2, 2)
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(torch.tensor([1.5, 0.0]))
    result = search(model, X, torch.ones(4, dtype=torch.long), generic(0.0))
    assert result.status_names == ["exhausted"] * 4 and not bool(result.binding.any())
    assert result.num_steps.tolist() == [30] * 4


def test_where_nothing_may_move_no_update_is_made(model):
    """Eq. 1 would go through T updates of nothing; ``num_steps`` counts those that were made."""
    y_target = (model(X).argmax(-1) + 1) % 3
    frozen, tied = Constraints.build(2, ["none"] * 2), Constraints.build(2, ["none", "both"])
    assert (
        search(model, X, y_target, generic(max_steps=9), frozen).num_steps.tolist() == [0] * 4
    )
    free = search(model, X, y_target, generic(max_steps=9, decision_threshold=1.0), tied)
    assert free.num_steps.tolist() == [9] * 4


def test_all_immutable_is_a_result_that_says_so(model):
    rules = Constraints.build(2, ["none", "none"])
    y_target = (model(X).argmax(-1) + 1) % 3
    result = search(model, X, y_target, constraints=rules)
    assert result.status_names == ["infeasible"] * 4
    assert torch.equal(result.x_cf, X) and not bool(result.converged.any())
    assert bool(result.binding.all()) and result.num_steps.tolist() == [0] * 4


def test_the_binding_constraint_is_named():
    """Only feature 0 matters, and it may not rise; the other two are free but useless."""
    model = linear(3, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]))
    x, y_target = torch.tensor([[-1.0, 0.0, 0.0]]), torch.tensor([1])
    down = search(model, x, y_target, generic(), Constraints.build(3, {0: "decrease"}))
    assert down.status_names == ["infeasible"] and down.binding_names(0, ["a", "b", "c"]) == {
        "a": "mutability"
    }
    wall = search(model, x, y_target, generic(), Constraints.build(3, domain={0: (-2, -0.5)}))
    assert wall.status_names == ["infeasible"] and wall.binding_names(0) == {"0": "domain"}
    assert float(wall.x_cf[0, 0]) == -0.5
    slow = search(model, x, y_target, generic(learning_rate=1e-3))
    assert slow.status_names == ["exhausted"] and not bool(slow.binding.any())
    free = search(model, x, y_target, generic())
    assert free.status_names == ["converged"] and not bool(free.binding.any())


def test_a_row_with_another_way_is_exhausted_not_infeasible():
    model = linear(2, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-2.0, -0.01], [2.0, 0.01]]))
    x, y_target = torch.tensor([[-1.0, 0.0]]), torch.tensor([1])
    result = search(model, x, y_target, generic(0.0), Constraints.build(2, {0: "none"}))
    assert result.status_names == ["exhausted"] and result.binding.bool().tolist() == [
        [True, False]
    ]
    quiet = search(
        model, x, y_target, generic(0.0), Constraints.build(2, {0: "none"}), diagnose=False
    )
    assert quiet.binding.shape == (1, 0)


def test_no_steps_allowed(model):
    y_target = (model(X).argmax(-1) + 1) % 3
    result = search(model, X, y_target, generic(max_steps=0), record=True)
    assert torch.equal(result.x_cf, X) and result.path.shape == (1, 4, 2)
    assert set(result.status_names) == {"exhausted"}


def test_an_empty_batch_has_an_empty_result(model):
    result = search(model, X[:0], TARGET[:0])
    assert (
        result.x_cf.shape == (0, 2)
        and result.status.shape == (0,)
        and result.binding.shape == (0, 2)
    )


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_gradient_mode_does_not_matter(model, context):
    expected = search(model, X, TARGET)
    with context():
        found = search(model, X.clone(), TARGET)
    assert torch.equal(found.x_cf, expected.x_cf)
    assert not found.x_cf.requires_grad


@pytest.mark.parametrize("diagnose", [True, False])
def test_what_a_search_leaves_behind_serves_autograd(model, diagnose):
    """Inside, plain chains are searched in inference mode; neither the result nor the constraints
    may keep it.
    """
    rules = Constraints.build(2, mutability=["increase", "both"])
    result = search(
        model, X, TARGET, generic(max_steps=3, decision_threshold=1.0), rules, diagnose=diagnose
    )
    tensors = [value for value in vars(result).values() if isinstance(value, Tensor)]
    assert not any(value.is_inference() for value in tensors)
    scale = torch.ones(2, requires_grad=True)
    rules.mask_step(scale * result.x_cf).sum().backward()
    assert scale.grad is not None


def test_a_derivative_of_ones_own_may_use_autograd(model):
    """A penalty with a closed form goes with a chain walked by hand, but what it does inside is its
    own affair.
    """

    class Pull:
        def __call__(self, state):
            return (state.x_cf - 1).square().sum(-1)

    class PullItself(Pull):
        def add_gradient(self, state, grad):
            with torch.enable_grad():
                leaf = state.x_cf.detach().requires_grad_()
                grad.add_(torch.autograd.grad(self(state._replace(x_cf=leaf)).sum(), leaf)[0])

    def found(penalty):
        return search(
            model, X, TARGET, Generator("own", (penalty,), max_steps=5, decision_threshold=1.0)
        ).x_cf

    assert_close(found(PullItself()), found(Pull()))


def test_the_callers_rows_stay_as_they_are(model):
    x = X.clone().requires_grad_()
    result = search(model, x, TARGET)
    assert torch.equal(x.detach(), X) and x.grad is None
    assert (
        result.x_cf.data_ptr() != x.data_ptr()
        and result.x_adv.data_ptr() != result.x_cf.data_ptr()
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_any_integer_type_names_a_class(model, dtype):
    assert torch.equal(search(model, X, TARGET.to(dtype)).x_cf, search(model, X, TARGET).x_cf)


def test_fewer_rows_cost_less():
    """Rows that are done leave the working set: the model sees fewer and fewer."""
    torch.manual_seed(0)
    model, x, seen = linear(2, 2), 2 * torch.randn(200, 2), []
    y_target = 1 - model(x).argmax(-1)
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    result = search(
        model, x, y_target, generic(learning_rate=0.5, max_steps=40), diagnose=False
    )
    live = [int((result.num_steps >= step).sum()) for step in range(len(seen))]
    assert live[0] == 200 and 0 < live[-1] < 50, (
        "the test needs rows that arrive early and late"
    )
    # A smaller copy is made once a fifth of the rows is done, so there are never many more than
    # needed.
    assert all(rows <= n <= rows / 0.8 for n, rows in zip(seen, live, strict=True)), (
        seen,
        live,
    )


def test_threads_are_the_hosts_again(model):
    torch.set_num_threads(2)
    inside = []
    model.register_forward_pre_hook(
        lambda module, inputs: inside.append(torch.get_num_threads())
    )
    search(model, X, TARGET)
    assert set(inside) == {1} and torch.get_num_threads() == 2
    inside.clear()
    search(model, X, TARGET, threads=2)
    assert set(inside) == {2}
    with pytest.raises(InputError):
        search(model, X, TARGET + 9)
    assert torch.get_num_threads() == 2


def test_modes_come_back_even_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with pytest.raises(RuntimeError, match="ouch"), evaluating(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError("ouch")
    assert [module.training for module in model.modules()] == [True, True, False, True]


# ---- bad input -----------------------------------------------------------------------------------


def nan_in(x: Tensor) -> Tensor:
    x = x.clone()
    x[1, 0], x[3, 0] = torch.nan, torch.inf
    return x


BAD_INPUT = {
    "NaN and infinity": ((nan_in(X), TARGET), r"column\(s\) 0, 2 row\(s\) of 4"),
    "integers as features": ((X.long(), TARGET), r"x must be floating point.*x\.float\(\)"),
    "floats as classes": ((X, TARGET.float()), r"integer indices, got torch\.float32"),
    "truth values as classes": ((X, TARGET.bool()), r"integer indices, got torch\.bool"),
    "lengths": ((X, TARGET[:3]), r"\(4, 2\) and y \(3,\)"),
    "one row without its batch": ((X[0], TARGET[0]), "expected x"),
    "arrays": ((X.numpy(), TARGET), "torch tensors, got ndarray"),
    "dtype of the model": ((X.double(), TARGET), "torch.float64 but the model torch.float32"),
    "class too high": ((X, TARGET + 5), r"0\.\.2, got 5\.\.7"),
    "class below zero": ((X, TARGET - 1), r"0\.\.2, got -1\.\.1"),
    "device of the classes": ((X, TARGET.to("meta")), "x is on cpu but y on meta"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused(name, model):
    (x, y_target), message = BAD_INPUT[name]
    with pytest.raises(InputError, match=message):
        search(model, x, y_target)


def test_a_model_elsewhere_is_refused():
    with pytest.raises(InputError, match=r"x is on cpu but the model on meta.*\.to\(device\)"):
        search(linear(2, 2).to("meta"), X, TARGET % 2)


class Returns(nn.Module):
    """A model with a given fault in what it returns."""

    def __init__(self, output) -> None:
        super().__init__()
        self.output, self.layer = output, nn.Linear(2, 3)

    def forward(self, x):
        return self.output(self.layer(x))


BAD_MODELS = {
    "probabilities": (lambda z: z.softmax(-1), "probabilities.*return logits"),
    "one column": (lambda z: z[:, :1], "one column; a binary classifier needs two"),
    "no column": (lambda z: z[:, 0], r"returned \(4,\)"),
    "a tuple": (lambda z: (z, z), r"returned tuple of 2; expected a tensor of logits.*Wrap it"),
    "a dict": (
        lambda z: {"logits": z, "loss": 0},
        r"returned dict with keys 'logits', 'loss'; expected a tensor",
    ),
    "an object": (
        lambda z: SimpleNamespace(logits=z),
        "returned SimpleNamespace with the attribute 'logits'",
    ),
    "nothing": (lambda z: None, "returned NoneType; expected a tensor"),
    "NaN": (lambda z: z * torch.nan, "NaN or infinity"),
    "other rows": (lambda z: z[:2], r"returned \(2, 3\) for \(4,\) rows"),
}


def test_copies_of_one_row_that_sums_to_one_are_not_taken_for_probabilities():
    model = nn.Linear(2, 2, bias=False)
    model.weight.data = torch.eye(2)
    found = search(model, torch.tensor([[1.0, 0.0]]), torch.tensor([1]), generic(num_answers=3))
    assert found.answers.x_cf.shape == (1, 3, 2)


@pytest.mark.parametrize("name", BAD_MODELS)
def test_models_that_are_no_classifiers_are_refused(name):
    output, message = BAD_MODELS[name]
    model = Returns(output).train()
    with pytest.raises(ModelError, match=message):
        search(model, X, TARGET)
    assert model.training


def test_the_first_answer_of_any_model_is_checked():
    with pytest.raises(ModelError, match="returned dict with keys 'logits'"):
        first_logits(Returns(lambda z: {"logits": z}), X, TARGET)


def test_finiteness_is_looked_at_block_by_block():
    """Rows may be mapped from a file larger than memory: nothing of the size of x is ever made."""
    num = 1_200_000
    huge = torch.full((num, 8), 1e38)  # finite values whose sum is not
    with LargestMade() as seen:
        check_finite(huge)
    assert 0 < seen.num < huge.numel() / 2
    huge[[3, 50, num - 1], [1, 1, 6]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    with pytest.raises(InputError, match=rf"column\(s\) 1, 6, 3 row\(s\) of {num}"):
        check_finite(huge)
    with pytest.raises(InputError, match=rf"column\(s\) 1, 6, 3 row\(s\) of {num}"):
        check_finite(huge.reshape(2, num // 2, 8))
    check_finite(huge[:0])


def test_a_factual_outside_its_domain_is_refused(model):
    with pytest.raises(
        ConstraintError, match=r"1 factual.*feature 0.*\[-1, 1.75\].*row 3 with 2"
    ):
        search(model, X, TARGET, constraints=Constraints.build(2, domain={0: (-1, 1.75)}))


def test_constraints_on_other_features_are_refused(model):
    with pytest.raises(InputError, match="3 features, x has 2"):
        search(model, X, TARGET, constraints=Constraints.build(3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": -1}, "max_steps must be a whole number of at least 0"),
        ({"decision_threshold": 0.0}, "probability"),
        ({"decision_threshold": 1.2}, "probability"),
        ({"decision_threshold": torch.tensor([0.5, 2.0])}, "probability"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"epsilon": -0.1}, "epsilon must be at least 0"),
        ({"learning_rate": np.nan}, "learning_rate must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Generator("x", **settings)

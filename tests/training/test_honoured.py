"""A user's own code is honoured, stacked or alone: never ignored. And what cannot be is refused in
words.
"""

import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import counterfactual_training as ct
from counterfactual_training import (
    Constraints,
    Fleet,
    Generator,
    Member,
    Objective,
    ecco,
    mlp,
    train,
)
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.generators.penalties import Distance
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.training.callbacks import Callback

QUICK = ct.methods.ct_published(
    epochs=3, batch_size=20, num_counterfactuals=12, learning_rate=0.02
)
ARRIVING = ecco(learning_rate=0.5, decision_threshold=0.6, max_steps=12)


def chain(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return mlp(2, 2, hidden=(6,)).double()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat(
        [value.detach().flatten().double() for value in model.state_dict().values()]
    )


def in_a_fleet(x, y, make, methods, why=None):
    """Train a fleet and the same members alone; everyone's weights must agree. Returns them, and
    the groups trained.

    ``make(i)`` builds the model of a member, twice the same.
    """
    models, lone = ([make(i) for i in range(len(methods))] for _ in range(2))
    groups = []

    class Groups(Callback):
        def on_train_begin(self, run) -> None:
            groups.append(list(run.members))

    with pytest.warns(UserWarning, match=why) if why else warnings.catch_warnings():
        Fleet([Member(m, s) for m, s in zip(models, methods, strict=True)]).train(
            x, y, callbacks=[Groups()]
        )
    for mine, its, method in zip(models, lone, methods, strict=True):
        train(its, x, y, method)
        assert_close(weights(mine), weights(its), atol=1e-8, rtol=1e-6)
    return [weights(model) for model in models], groups


@pytest.fixture
def doubles(blobs):
    return blobs[0].double(), blobs[1]


# ---- parts of a class of one's own ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Focused(Objective):
    """Twice the loss wherever the divergence is there too."""

    def __call__(self, *arguments, **named):
        terms = super().__call__(*arguments, **named)
        return replace(terms, total=terms.total + 5 * terms.class_loss.square())


@dataclass(frozen=True, eq=False)
class Narrow(Constraints):
    """The first feature must not move farther than a tenth."""

    def bounds(self, x):
        found = super().bounds(x)
        near = torch.tensor([0.1, torch.inf]).to(x)
        return found._replace(
            lower=torch.maximum(found.lower, x - near),
            upper=torch.minimum(found.upper, x + near),
        )


@dataclass(frozen=True)
class Marked(Generator):
    pass


@dataclass(frozen=True)
class Doubled(Distance):
    """A penalty with a weight and code of its own."""

    def __call__(self, state):
        return 2 * super().__call__(state)


def narrow(x):
    plain = Constraints.infer(x)
    return Narrow(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})


OWN = {
    "objective": (lambda x: {"objective": Focused()}, "Focused"),
    "constraints": (lambda x: {"constraints": narrow(x)}, "Narrow"),
    "generator": (
        lambda x: {"generator": Marked("own", max_steps=20, learning_rate=0.5)},
        "Marked",
    ),
}


@pytest.mark.parametrize("part", OWN)
def test_a_class_of_ones_own_is_trained_alone_among_stacked_ones(doubles, part):
    x, y = doubles
    make, name = OWN[part]
    plain = QUICK.replace({"generator": ARRIVING, "constraints": Constraints.infer(x)})
    methods = [plain, plain.replace(make(x)), plain]
    found, groups = in_a_fleet(
        x, y, lambda i: chain(), methods, f"Member 1 is trained alone: {name}"
    )
    assert groups == [[0, 2], [1]]
    assert torch.equal(found[0], found[2]) and not torch.allclose(found[0], found[1], atol=1e-4)


def test_a_penalty_of_ones_own_with_a_weight_is_honoured(doubles):
    x, y = doubles
    penalties = (Distance(weight=0.3), Doubled(weight=0.3), Doubled(weight=0.1))
    methods = [
        QUICK.replace("generator", ARRIVING.replace(penalties=(penalty,), epsilon=1.0))
        for penalty in penalties
    ]
    found, groups = in_a_fleet(x, y, lambda i: chain(), methods)
    assert groups == [[0], [1], [2]]
    assert not torch.allclose(found[0], found[1], atol=1e-4) and not torch.allclose(
        found[1], found[2], atol=1e-4
    )


# ---- models that do more than their layers say ---------------------------------------------------


def with_hook(model):
    model.register_forward_hook(lambda module, inputs, output: output * 3)


def with_pre_hook(model):
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.5,))


def with_backward_hook(model):
    def triple(module, grad_in, grad_out):
        return tuple(None if grad is None else 3 * grad for grad in grad_in)

    model[0].register_full_backward_hook(triple)


def with_backward_pre_hook(model):
    model[0].register_full_backward_pre_hook(
        lambda module, grad_out: tuple(0 * g for g in grad_out)
    )


def with_parameter_hook(model):
    next(iter(model.parameters())).register_hook(lambda grad: 0 * grad)


def with_accumulated_hook(model):
    def zero(parameter):
        parameter.grad.zero_()

    next(iter(model.parameters())).register_post_accumulate_grad_hook(zero)


def with_forward(model):
    model.forward = lambda x: nn.Sequential.forward(model, x) * 3


MORE = [
    with_hook,
    with_pre_hook,
    with_backward_hook,
    with_backward_pre_hook,
    with_parameter_hook,
    with_accumulated_hook,
]


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("change", MORE)
def test_hooks_are_called_in_a_fleet_and_alone(doubles, change):
    x, y = doubles

    def make(i):
        model = chain()
        if i == 0:
            change(model)
        return model

    plain = QUICK.replace("generator", ARRIVING)
    found, groups = in_a_fleet(x, y, make, [plain, plain], "one by one.*hook")
    assert groups == [[0], [1]]
    # A hook that multiplies the gradient of the input is the one that training does not notice.
    if change is not with_backward_hook:
        assert not torch.allclose(found[0], found[1], atol=1e-4)


def test_a_forward_put_on_the_object_is_called(doubles):
    x, y = doubles
    models, twin = [chain(), chain()], chain()
    with_forward(models[0])
    with_forward(twin)
    with pytest.warns(UserWarning, match="one by one.*forward of its own"):
        Fleet([Member(model, QUICK) for model in models]).train(x, y)
    train(twin, x, y, QUICK)
    assert torch.equal(weights(models[0]), weights(twin))
    assert not torch.allclose(weights(models[0]), weights(models[1]), atol=1e-4)


class ByBatch(nn.Module):
    """Looks at the whole batch in a way of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(2, 2), how

    def forward(self, x):
        logits = self.layer(x)
        if self.how == "branches":
            return logits * 2 if float(x.detach().sum()) > 0 else logits
        if self.how == "draws in training" and self.training:
            return nn.functional.dropout(logits, 0.5)
        if self.how == "doubles in training" and self.training:
            return 2 * logits
        return logits


def by_batch(how):
    torch.manual_seed(0)
    return ByBatch(how).double()


@pytest.mark.parametrize("how", ["branches", "draws in training"])
def test_models_that_cannot_run_side_by_side_are_trained_one_by_one(doubles, how):
    methods = [QUICK.replace("seed", i) for i in range(2)]
    _, groups = in_a_fleet(
        *doubles, lambda i: by_batch(how), methods, "one by one.*side by side"
    )
    assert groups == [[0], [1]]


def test_a_model_that_trains_differently_than_it_predicts_does_so_in_a_stack(doubles):
    methods = [QUICK.replace("seed", i) for i in range(2)]
    _, groups = in_a_fleet(*doubles, lambda i: by_batch("doubles in training"), methods)
    assert groups == [[0, 1]]


def test_parts_in_eval_mode_stay_there_in_a_stack(doubles):
    def make(i, frozen=(0, 1)):
        model = nn.Sequential(by_batch("doubles in training"), nn.Linear(2, 2).double())
        model[0].train(i not in frozen)
        return model

    _, groups = in_a_fleet(*doubles, make, [QUICK] * 2)
    assert groups == [[0, 1]]
    mixed, groups = in_a_fleet(
        *doubles, lambda i: make(i, (0,)), [QUICK] * 2, "parts in eval mode"
    )
    assert groups == [[0], [1]] and not torch.allclose(mixed[0], mixed[1], atol=1e-4)


def test_a_stack_that_answers_otherwise_is_not_used(doubles, monkeypatch):
    real = StackedModel.forward
    monkeypatch.setattr(StackedModel, "forward", lambda self, x: real(self, x) * (1 + 1e-6))
    _, groups = in_a_fleet(*doubles, chain, [QUICK] * 2, "other logits in a stack")
    assert groups == [[0], [1]]


def test_restarts_honour_a_model_of_ones_own(blobs):
    """Through the classifier: layers with dropout cannot be stacked, and are restarted one by
    one.
    """
    x, y = (value.numpy() for value in blobs)

    def dropping(features, classes):
        return nn.Sequential(
            nn.Linear(features, 6), nn.Dropout(0.2), nn.ReLU(), nn.Linear(6, classes)
        )

    estimator = ct.CounterfactualClassifier(
        "conventional", model=dropping, epochs=2, n_restarts=3
    )
    with pytest.warns(UserWarning, match="one by one.*Dropout"):
        estimator.fit(x, y)
    assert len(estimator.predict(x)) == len(x)


# ---- modes ---------------------------------------------------------------------------------------


def normed(features: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def test_a_model_in_eval_mode_with_batch_norm_is_trained_whole_and_that_is_told(blobs):
    model, twin = normed().eval(), normed()
    with pytest.warns(
        UserWarning, match=r"eval mode and holds BatchNorm1d.*model\.train\(\) first"
    ):
        train(model, *blobs, QUICK)
    train(twin, *blobs, QUICK)
    assert torch.equal(weights(model), weights(twin))
    for n in (1, 2):
        members = [Member(normed().eval(), QUICK) for _ in range(n)]
        with pytest.warns(UserWarning) as told:
            Fleet(members).train(*blobs)
        assert sum("came in eval mode" in str(warning.message) for warning in told) == n


def test_parts_in_eval_mode_keep_their_statistics(blobs):
    model = normed()
    model[1].eval()
    before = model[1].running_mean.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(model, *blobs, QUICK)
    assert torch.equal(model[1].running_mean, before)


def test_a_model_in_eval_mode_without_statistics_needs_no_warning(blobs):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(mlp(2, 2).eval(), *blobs, QUICK)


ALONE = {"conventional": QUICK.conventional(), "burn-in": QUICK.replace("burn_in", 0.4)}


@pytest.mark.parametrize("case", ALONE)
def test_a_last_batch_of_one_row_with_batch_norm_is_refused_in_words(make_blobs, case):
    x, y = make_blobs(n=61)
    method = ALONE[case]
    message = (
        "61 rows in batches of 20 leave one with a single row, on which '1' cannot compute "
        "statistics"
    )
    with pytest.raises(InputError, match=message):
        train(normed(), x, y, method)
    with pytest.raises(InputError, match=message):
        Fleet([Member(normed(), method)]).train(x, y)
    with (
        pytest.raises(InputError, match=message),
        pytest.warns(UserWarning, match="one by one"),
    ):
        Fleet([Member(normed(), method), Member(normed(), method)]).train(x, y)
    train(normed(), x, y, method.replace("batch_size", 21))


def test_one_row_with_batch_norm_is_fine_where_it_is_not_alone(make_blobs):
    """Beside its counterfactuals, with frozen statistics, as an image, or left out by a loader."""
    x, y = make_blobs(n=61)
    train(normed(), x, y, QUICK)
    frozen = normed()
    frozen[1].eval()
    train(frozen, x, y, QUICK.conventional())
    images = nn.Sequential(
        nn.Unflatten(1, (1, 2, 1)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(2, 2)
    )
    train(images, x, y, QUICK.conventional())
    loader = DataLoader(TensorDataset(x, y), batch_size=20, drop_last=True)
    train(normed(), loader, method=QUICK.conventional())
    with pytest.raises(InputError, match="single row"):
        train(
            normed(),
            DataLoader(TensorDataset(x, y), batch_size=12),
            method=QUICK.conventional(),
        )


# ---- refused in words ----------------------------------------------------------------------------


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return {"logits": self.layer(x)}


def test_an_output_that_is_no_tensor_is_told(blobs):
    x, y = blobs
    message = "returned dict.*expected a tensor of logits"
    with pytest.raises(ModelError, match=message):
        train(Table(), x, y, QUICK)
    with pytest.raises(ModelError, match=message):
        Fleet([Member(Table(), QUICK) for _ in range(2)]).train(x, y)
    with pytest.raises(ModelError, match=message):
        ct.search(Table(), x, 1 - y)
    with pytest.raises(ModelError, match=message):
        ct.evaluate(Table(), (x, y))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ct.methods.ct_published(seed=1.5), "seed must be a whole number, got 1.5"),
        (lambda: ct.methods.ct_published(seed="1"), "seed must be a whole number, got '1'"),
        (
            lambda: ct.methods.ct_published(threads=0),
            "threads must be a whole number of at least 1, got 0",
        ),
        (lambda: ct.methods.ct_published(threads=1.5), "threads must be a whole number"),
        (
            lambda: ct.methods.ct_published(accumulate=0),
            "accumulate must be a whole number of at least 1",
        ),
        (
            lambda: ecco(max_steps=2.5),
            "max_steps must be a whole number of at least 0, got 2.5",
        ),
    ],
)
def test_numbers_that_are_not_whole_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_more_threads_than_processors_are_refused(blobs):
    method = QUICK.replace("threads", 10_000)
    with pytest.raises(InputError, match="threads must be an integer from 1 to"):
        train(mlp(2, 2), *blobs, method)
    with pytest.raises(InputError, match="threads must be an integer from 1 to"):
        Fleet([Member(chain(i).float(), method) for i in range(2)]).train(*blobs)

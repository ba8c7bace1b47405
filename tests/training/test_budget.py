"""What goes beyond the class loss counts as much as a conventional twin lets it."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import (
    AccuracyBudget,
    BestEpoch,
    Callback,
    Constraints,
    Fleet,
    Member,
    Method,
    line,
    methods,
    mlp,
    search,
    train,
)
from counterfactual_training.errors import InputError, InputWarning
from counterfactual_training.training.run import History

# So strong that it costs accuracy.
METHOD = methods.ct_published(
    lambda_div=5.0,
    lambda_reg=2.0,
    max_steps=15,
    epochs=8,
    batch_size=20,
    num_counterfactuals=30,
    learning_rate=0.02,
    budget=0.01,
)


def rows(overlap: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(120) % 2
    return overlap * torch.randn(
        120, 2, generator=torch.Generator().manual_seed(0)
    ) + 2 * y.unsqueeze(1), y


def fresh(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return mlp(2, 2, hidden=(8,))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Remember(Callback):
    """The weights after every epoch."""

    def __init__(self) -> None:
        self.seen = []

    def on_epoch_end(self, run) -> None:
        self.seen.append(weights(run.snapshot(0)))


def test_the_twin_is_the_same_run_without_counterfactuals():
    """Alone, with shuffled rows, dropout and an optimizer of one's own: the same accuracies, epoch
    by epoch.
    """
    x, y = rows()
    for make, optimizer in (
        (fresh, None),
        (fresh, lambda p: torch.optim.SGD(p, 0.01, momentum=0.5)),
        (
            lambda: nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 2)),
            None,
        ),
    ):
        method, model = METHOD.replace({"shuffle": True, "seed": 3}), make()
        twin = copy.deepcopy(model)
        mine = train(model, x, y, method, optimizer=optimizer).history.to_frame()
        its = train(twin, x, y, method.conventional(), optimizer=optimizer).history.to_frame()
        assert mine["reference_accuracy"].tolist() == its["accuracy"].tolist()
        assert mine["accuracy"].tolist() != its["accuracy"].tolist()


def test_strength_follows_what_is_lost():
    history = train(fresh(), *rows(), METHOD).history.to_frame()
    assert history["strength"][0] == 0.3 and history["strength"].nunique() > 3
    for before, after in zip(history.index[:-1], history.index[1:], strict=True):
        lost = history["reference_accuracy"][before] - history["accuracy"][before]
        step = math.exp(-0.15 * min(max((lost - 0.01) / 0.01, -1), 2))
        assert history["strength"][after] == pytest.approx(
            min(max(history["strength"][before] * step, 0.02), 1.0)
        )


def test_strength_is_a_factor_of_all_terms_but_the_class_loss():
    x, y = rows()
    method, mine, its = METHOD.replace("epochs", 1), fresh(), fresh()
    train(mine, x, y, method.replace("budget", 0.5))
    weaker = {k: 0.3 * v for k, v in vars(METHOD.objective).items() if k != "lambda_class"}
    train(its, x, y, method.replace({**weaker, "budget": None}))
    assert_close(weights(mine), weights(its))


def test_the_last_epoch_within_the_budget_is_kept():
    """Of the second half; where there was none, the last one as it is."""
    ends = set()
    for budget in (1e-6, 0.01, 0.03, 0.9):
        seen, model = Remember(), fresh()
        history = train(
            model, *rows(2.0), METHOD.replace("budget", budget), callbacks=[seen]
        ).history.to_frame()
        within = [
            e
            for e in range(4, 8)
            if history["reference_accuracy"][e] - history["accuracy"][e] <= budget
        ]
        end = within[-1] if within else 7
        assert torch.equal(weights(model), seen.seen[end])
        ends.add((bool(within), end == 7))
    assert len(ends) > 1


def test_an_early_epoch_within_the_budget_is_not_kept():
    budget = AccuracyBudget(0.01)
    budget.reference = SimpleNamespace(
        running=[], slots=[0], histories=[History([{"accuracy": 0.9}])]
    )
    for epoch in range(1, 9):
        weights_now = {"epoch": epoch}
        run = SimpleNamespace(
            validation=None,
            epoch=epoch,
            epochs=8,
            running=[0],
            slots=[0],
            methods=[METHOD],
            strength=[0.3],
            histories=[History([{"accuracy": 0.9 if epoch < 6 else 0.8}])],
            snapshot=lambda i, now=weights_now: SimpleNamespace(state_dict=lambda: now),
        )
        budget.on_epoch_end(run)
        assert budget.kept == ({} if epoch <= 4 else {0: {"epoch": 5}})


def test_burn_in_neither_costs_nor_strengthens():
    history = train(fresh(), *rows(), METHOD.replace("burn_in", 0.5)).history.to_frame()
    assert (history["strength"][:5] == 0.3).all() and (history["strength"][5:] != 0.3).all()
    assert (history["accuracy"][:4] == history["reference_accuracy"][:4]).all()


def test_a_callback_gives_a_budget_to_methods_without_one():
    x, y = rows()
    by_method, by_callback = fresh(), fresh()
    train(by_method, x, y, METHOD)
    train(by_callback, x, y, METHOD.replace("budget", None), callbacks=[AccuracyBudget(0.01)])
    assert torch.equal(weights(by_method), weights(by_callback))


def test_conventional_training_is_not_touched():
    x, y = rows()
    plain, budgeted = fresh(), fresh()
    train(plain, x, y, METHOD.conventional())
    history = train(
        budgeted, x, y, METHOD.conventional(), callbacks=[AccuracyBudget(0.01)]
    ).history
    assert (
        torch.equal(weights(plain), weights(budgeted)) and "strength" not in history.records[0]
    )


def test_members_with_rows_of_their_own_are_held_to_their_own_twins():
    parts = [rows(overlap) for overlap in (0.5, 1.0, 2.0)]
    x, y = (torch.stack(column) for column in zip(*parts, strict=True))
    members = [Member(fresh(i).double(), METHOD.seeded(i)) for i in range(3)]
    alone = [copy.deepcopy(member.model) for member in members]
    for i, result in enumerate(Fleet(members).train(x.double(), y)):
        lone = train(alone[i], x[i].double(), y[i], METHOD.seeded(i))
        for name in ("reference_accuracy", "strength", "accuracy"):
            assert_close(
                result.history.to_frame()[name].tolist(), lone.history.to_frame()[name].tolist()
            )
        assert_close(weights(result.model), weights(alone[i]), rtol=1e-6, atol=1e-7)


def test_a_member_that_is_stopped_ends_within_its_budget():
    class Stop(Callback):
        def on_epoch_end(self, run) -> None:
            if run.epoch == 7:
                run.stop("enough")

    seen, model = Remember(), fresh()
    callbacks = [seen, Stop()]
    history = train(
        model, *rows(2.0), METHOD.replace("budget", 0.03), callbacks=callbacks
    ).history.to_frame()
    within = [
        e
        for e in range(4, 7)
        if history["reference_accuracy"][e] - history["accuracy"][e] <= 0.03
    ]
    assert len(history) == 7 and torch.equal(
        weights(model), seen.seen[within[-1] if within else 6]
    )


@pytest.mark.parametrize("budget", [0, -0.1, 1, float("nan")])
def test_a_budget_is_a_share(budget):
    with pytest.raises(InputError, match="between 0 and 1"):
        AccuracyBudget(budget)
    with pytest.raises(InputError, match="between 0 and 1"):
        methods.ct_published(budget=budget)
    with pytest.raises(InputError, match="start"):
        AccuracyBudget(0.01, start=0.0)


# ---- cheap recourse ------------------------------------------------------------------------------


def cheap(**changes) -> Method:
    return methods.cheap_recourse(epochs=6, batch_size=20, num_counterfactuals=30, **changes)


def test_the_recipe():
    method = methods.cheap_recourse()
    objective, training, generator = method.objective, method.training, method.generator
    assert (objective.lambda_contrast, objective.lambda_recourse) == (0.1, 0.5)
    assert (objective.lambda_div, objective.lambda_reg, objective.lambda_adv) == (0.0, 0.0, 0.0)
    assert (generator.decision_threshold, generator.max_steps, generator.epsilon) == (
        0.5,
        50,
        0.3,
    )
    assert (
        training.positives,
        training.immature,
        method.budget,
        method.project_categories,
    ) == (
        4,
        "keep",
        0.0025,
        True,
    )


def test_the_recourse_loss_counts_where_a_feature_is_immutable():
    x, y = rows()

    def trained(rules: Constraints, **changes: float) -> torch.Tensor:
        method = cheap(constraints=rules, **changes)
        return weights(train(fresh(), x, y, method).model)

    free, protected = (
        Constraints.infer(x),
        replace(Constraints.infer(x), may_increase=torch.tensor([True, False])),
    )
    protected = replace(protected, may_decrease=protected.may_increase)
    assert torch.equal(trained(free), trained(free, lambda_recourse=0.0))
    assert not torch.equal(trained(protected), trained(protected, lambda_recourse=0.0))


@pytest.mark.check
def test_the_recipe_shortens_the_way_of_people_who_cannot_change_all():
    """Where a feature that all may change and one that nobody may tell the same, the decision moves
    to the former.
    """
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    x = torch.randn(400, 2, generator=rng) + y.unsqueeze(1) * torch.tensor([1.5, 3.0])
    rules = Constraints.build(2, {1: "none"}, (-10.0, 10.0))
    cost, accuracy = [], []
    for method in (cheap().conventional(), cheap()):
        method = method.replace({"constraints": rules, "epochs": 30, "learning_rate": 0.01})
        model = train(fresh(), x, y, method.replace("budget", method.budget and 0.01)).model
        with torch.no_grad():
            refused = x[(model(x).argmax(-1) == 0)]
        found = search(
            model, refused, torch.ones(len(refused), dtype=torch.long), line(), rules
        )
        cost.append(float((found.x_cf - refused).abs().sum(-1).mean()))
        accuracy.append(float((model(x).argmax(-1) == y).float().mean()))
    assert cost[1] < 0.9 * cost[0] and accuracy[1] > accuracy[0] - 0.02


def test_validation_rows_count_where_they_lose_more():
    """Against the reference's best epoch, which early stopping would have kept."""
    x, y = rows(overlap=2.0)
    held = rows(overlap=1.5)
    budget = AccuracyBudget(0.001)
    result = train(fresh(), x, y, METHOD, validation=held, callbacks=[budget])
    columns = result.history.to_frame()
    reference = train(fresh(), x, y, METHOD.conventional(), validation=held).history.to_frame()
    best = reference["validation_accuracy"].cummax()
    lost = pd.concat(
        [
            columns["reference_accuracy"] - columns["accuracy"],
            best - columns["validation_accuracy"],
        ],
        axis=1,
    ).max(axis=1)
    kept = lost[columns["epoch"] > 4]
    within = kept[kept <= 0.001]
    expected = columns["validation_accuracy"].iloc[within.index[-1:]]
    if within.empty:
        # The reference where it was best.
        expected = reference["validation_accuracy"].iloc[
            [reference["validation_loss"].idxmin()]
        ]
    with torch.no_grad():
        accuracy = (result.model(held[0]).argmax(1) == held[1]).double().mean()
    assert float(accuracy) == pytest.approx(expected.item())


def test_where_no_epoch_keeps_the_budget_the_conventional_network_is_kept():
    x, y = rows(overlap=2.0)
    held = rows(overlap=1.5)

    class Harm(Callback):
        """Lets the member, not its reference, forget what it learned."""

        def on_batch_end(self, run):
            run.models[0][-1].weight.data.zero_()

    twin = fresh()
    best = BestEpoch("validation_loss", "min")
    train(twin, x, y, METHOD.conventional(), validation=held, callbacks=[best])
    with pytest.warns(InputWarning, match="No epoch kept the budget of 0.10% of accuracy"):
        model = train(
            fresh(), x, y, METHOD, validation=held, callbacks=[Harm(), AccuracyBudget(0.001)]
        ).model
    assert_close(model(held[0]), twin(held[0]))

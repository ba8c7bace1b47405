"""A member of a fleet ends up as :func:`train` would have left it alone."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import (
    Constraints,
    cnn,
    ecco,
    fit_vae,
    generic,
    linear,
    methods,
    mlp,
    revise,
    train,
)
from counterfactual_training.errors import FileError, InputError, ModelError
from counterfactual_training.training import fleet as fleet_module
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.fleet import Fleet, Member

ROWS = 120


class After(Callback):
    """Calls a function after every epoch."""

    def __init__(self, do):
        self.do = do

    def on_epoch_end(self, run):
        self.do(run)


def blobs(seed=0, rows=ROWS):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 2, generator=rng, dtype=torch.float64) + torch.stack(
        [y.double(), (y % 2).double()], -1
    )
    return x, y


def model_of(seed, classes=3):
    torch.manual_seed(seed)
    return mlp(2, classes, (7,)).double()


def short(**changes):
    return methods.ct_published(
        **{"epochs": 3, "num_counterfactuals": 30, "learning_rate": 0.02, **changes}
    )


def expect_alone(members, x, y, validation=None, results=None):
    """Train the members as a fleet and each alone; everything must agree."""
    alone = [copy.deepcopy(member.model) for member in members]
    results = Fleet(members).train(x, y, validation=validation)
    for i, (member, model, result) in enumerate(zip(members, alone, results, strict=True)):
        own = (x[i], y[i]) if y.dim() > 1 else (x, y)
        held = validation
        if validation is not None and validation[1].dim() > 1:
            held = (validation[0][i], validation[1][i])
        lone = train(model, *own, member.method, validation=held)
        assert result.model is member.model and not result.model.training
        for mine, its in zip(member.model.parameters(), model.parameters(), strict=True):
            assert_close(mine, its, atol=1e-9, rtol=1e-7)
        theirs, ours = lone.history.to_frame(), result.history.to_frame()
        assert list(theirs.columns) == list(ours.columns)
        for column in theirs.columns.drop("seconds"):
            assert_close(
                torch.tensor(ours[column].to_numpy(float)),
                torch.tensor(theirs[column].to_numpy(float)),
                atol=1e-6,
                rtol=1e-6,
                equal_nan=True,
                msg=lambda text, column=column: f"{column}: {text}",
            )
        assert lone.history.stopped == result.history.stopped
    return results


OPTIONS = {
    "seed": [{"seed": 1}, {"seed": 2}],
    "learning rate": [{"learning_rate": v} for v in (0.001, 0.05)],
    "burn-in": [{"burn_in": b} for b in (0.0, 0.34, 1.0)],
    "lambda_class": [{"lambda_class": v} for v in (0.5, 2.0)],
    "lambda_div": [{"lambda_div": v} for v in (0.0, 0.2, 3.0)],
    "lambda_reg": [{"lambda_reg": v} for v in (0.0, 0.01, 0.5)],
    "lambda_adv": [{"lambda_adv": v} for v in (0.0, 1.0)],
    "lambda_contrast": [{"lambda_contrast": v} for v in (0.0, 0.3, 2.0)],
    "lambda_recourse": [
        {"lambda_recourse": v, "constraints": Constraints.build(2, {0: "none"})}
        for v in (0.0, 0.4, 2.0)
    ],
    "budget": [{"budget": v} for v in (None, 0.001, 0.2)],
    "terms": [
        {},
        {"lambda_adv": 0.0},
        {"lambda_div": 0.0, "lambda_reg": 0.0},
        {"lambda_div": 0.0, "lambda_reg": 0.0, "lambda_adv": 0.0},
    ],
    "threshold": [{"generator": ecco(decision_threshold=v)} for v in (0.4, 0.9)],
    "steps": [{"generator": ecco(max_steps=v)} for v in (0, 5, 40)],
    "epsilon": [{"generator": ecco(epsilon=v)} for v in (0.0, 0.1, 1.0)],
    "search rate": [{"generator": ecco(learning_rate=v)} for v in (0.05, 0.5)],
    "lambda_cost": [{"generator": ecco(lambda_cost=v)} for v in (0.0, 0.3)],
    "lambda_energy": [{"generator": ecco(lambda_energy=v, max_steps=50)} for v in (0.1, 20.0)],
    "generator": [{"generator": g} for g in (generic(), ecco(), generic(lambda_cost=0.1))],
    "decay": [
        {"generator": ecco(decay=d, energy_ridge=r)}
        for d, r in (("none", 0.0), ("polynomial", 1e-3))
    ],
    "protection": [
        {"constraints": Constraints.build(2, mutability)}
        for mutability in (None, {0: "none"}, {1: "increase"}, ["none", "none"])
    ],
    "domain": [
        {"constraints": Constraints.build(2, None, box), "generator": ecco(learning_rate=3.0)}
        for box in ((-9.0, 9.0), (-3.5, 4.5))
    ],
    "inferred box": [{"constraints": None}, {"constraints": None, "seed": 3}],
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_member_equals_the_run_alone_whatever_differs(option):
    x, y = blobs()
    # Counterfactuals that arrive, for otherwise the divergence is that of positives with
    # themselves.
    arriving = ecco(learning_rate=0.5, decision_threshold=0.4, max_steps=12)
    usual = short(generator=arriving, constraints=Constraints.build(2))
    # All start alike, so that only the option tells them apart.
    members = [Member(model_of(0), usual.replace(change)) for change in OPTIONS[option]]
    results = expect_alone(members, x, y, validation=blobs(5, 40))
    weights = [
        torch.cat([p.detach().flatten() for p in result.model.parameters()])
        for result in results
    ]
    for i, j in itertools.combinations(range(len(weights)), 2):
        assert not torch.allclose(weights[i], weights[j], atol=1e-6), (
            f"members {i} and {j} have trained alike"
        )


def test_single_precision_differs_by_rounding_only():
    """One epoch; over many, rounding grows as any perturbation does (lab/drift.py)."""
    x, y = blobs()
    method = short(epochs=1, generator=ecco(learning_rate=0.5, decision_threshold=0.4))
    models, alone = ([model_of(i).float() for i in range(2)] for _ in range(2))
    Fleet([Member(model, method) for model in models]).train(x.float(), y)
    for mine, its in zip(models, alone, strict=True):
        train(its, x.float(), y, method)
        for a, b in zip(mine.parameters(), its.parameters(), strict=True):
            assert_close(a, b, atol=2e-6, rtol=0)


SHARED = {
    "shuffled": {"shuffle": True},
    "refreshed per batch": {"refresh": "batch"},
    "dropped": {"immature": "drop"},
    "kept": {"immature": "keep"},
    "nearest of three": {"positives": 3},
    "uniform": {"target_rule": "uniform"},
    "prior": {"target_rule": "prior"},
    "not true": {"target_rule": "not_true"},
    "predicted": {"adversarial_label": "predicted"},
    "uneven batches": {"batch_size": 37, "num_counterfactuals": 50},
    "more counterfactuals than rows": {"num_counterfactuals": 200},
}


@pytest.mark.parametrize("rule", SHARED)
def test_a_member_equals_the_run_alone_under_every_rule(rule):
    x, y = blobs()
    search = ecco(learning_rate=0.5, max_steps=12)
    members = [
        Member(
            model_of(i),
            short(seed=i, burn_in=0.4 * i, generator=search, **SHARED[rule]),
        )
        for i in range(3)
    ]
    expect_alone(members, x, y)


def test_revise_trains_beside_the_others_as_a_group_of_its_own():
    x, y = blobs()
    vae = fit_vae(x, epochs=5)
    generators = [
        ecco(),
        revise(vae, max_steps=9),
        generic(),
        revise(vae, lambda_cost=0.1, reencode=True),
    ]
    seen = []
    members = [
        Member(model_of(i), short(seed=i, generator=g)) for i, g in enumerate(generators)
    ]
    twins = [Member(copy.deepcopy(m.model), m.method) for m in members]
    Fleet(twins).train(x, y, callbacks=[After(lambda run: seen.append(tuple(run.members)))])
    assert sorted(set(seen)) == [(0, 2), (1, 3)]
    expect_alone(members, x, y)


def test_members_may_have_rows_of_their_own():
    parts = [blobs(seed) for seed in range(3)]
    x, y = torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts])
    held = [blobs(9 + seed, 31) for seed in range(3)]
    validation = torch.stack([h[0] for h in held]), torch.stack([h[1] for h in held])
    for shuffle in (False, True):
        members = [Member(model_of(i), short(seed=i, shuffle=shuffle)) for i in range(3)]
        expect_alone(members, x, y, validation)


def test_images_and_convolutions():
    torch.manual_seed(0)
    x, y = torch.rand(40, 1, 8, 8, dtype=torch.float64), torch.arange(40) % 2
    members = []
    for i in range(2):
        torch.manual_seed(i)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2)
        ).double()
        members.append(Member(model, short(epochs=2, seed=i, max_steps=5)))
    expect_alone(members, x, y)


def test_linear_models_repeated_activations_and_frozen_layers():
    x, y = blobs()
    torch.manual_seed(3)
    act = nn.Tanh()

    def deep():
        model = nn.Sequential(
            nn.Linear(2, 5), act, nn.Linear(5, 5), act, nn.Linear(5, 3)
        ).double()
        model[0].requires_grad_(False)
        return model

    for make in (deep, lambda: linear(2, 3).double()):
        expect_alone([Member(make(), short(seed=i)) for i in range(2)], x, y)


@pytest.mark.parametrize("rate", [1e100, 1e300])
def test_a_member_that_leaves_for_infinity_does_not_touch_the_others(rate):
    x, y = blobs()
    rates = [0.02, rate, 0.01]
    members = [
        Member(
            model_of(i),
            short(epochs=4, learning_rate=r, max_bad_updates=3),
        )
        for i, r in enumerate(rates)
    ]
    alone = [copy.deepcopy(member.model) for member in members]
    with pytest.warns(UserWarning, match="Member 1 of the fleet stopped"):
        results = Fleet(members).train(x, y)
    assert results[1].history.stopped is not None
    assert all(bool(torch.isfinite(p).all()) for p in members[1].model.parameters())
    for i in (0, 2):
        train(alone[i], x, y, members[i].method)
        assert results[i].history.stopped is None and len(results[i].history.records) == 4
        for mine, its in zip(members[i].model.parameters(), alone[i].parameters(), strict=True):
            assert_close(mine, its, atol=1e-9, rtol=1e-7)


def test_members_can_be_ended_early_and_the_stack_gets_smaller():
    x, y = blobs()
    members = [Member(model_of(i), short(epochs=6, seed=i)) for i in range(4)]
    alone = copy.deepcopy(members[3].model)
    widths, kept = [], {}

    def on_epoch(run):
        widths.append(len(run.slots))
        if run.epoch == 2:
            for i in (0, 2):
                kept[i] = run.snapshot(i)
                run.stop("pruned", i)

    results = Fleet(members).train(x, y, callbacks=[After(on_epoch)])
    assert [len(r.history.records) for r in results] == [2, 6, 2, 6]
    assert [r.history.stopped for r in results] == ["pruned", None, "pruned", None]
    assert widths == [4, 4, 2, 2, 2, 2]
    for i, model in kept.items():
        for mine, its in zip(members[i].model.parameters(), model.parameters(), strict=True):
            assert torch.equal(mine, its)
    train(alone, x, y, members[3].method)
    for mine, its in zip(members[3].model.parameters(), alone.parameters(), strict=True):
        assert_close(mine, its, atol=1e-9, rtol=1e-7)


@pytest.mark.usefixtures("saved_every_epoch")
@pytest.mark.parametrize("pruned_at", [None, 2])
def test_a_killed_fleet_resumes_from_its_checkpoint(tmp_path, pruned_at):
    x, y = blobs()

    def members():
        return [Member(model_of(i), short(epochs=6, seed=i)) for i in range(3)]

    def prune(run):
        if run.epoch == pruned_at:
            run.stop("pruned", 0)
            run.stop("pruned", 1)

    def stop_at(epoch):
        def on_epoch(run):
            prune(run)
            if run.epoch == epoch:
                raise KeyboardInterrupt

        return on_epoch

    whole = Fleet(members()).train(x, y, callbacks=[After(prune)])
    with pytest.raises(KeyboardInterrupt):
        Fleet(members()).train(
            x, y, checkpoint=tmp_path / "fleet.safetensors", callbacks=[After(stop_at(4))]
        )
    again, epochs = members(), []
    results = Fleet(again).train(
        x,
        y,
        checkpoint=tmp_path / "fleet.safetensors",
        callbacks=[After(lambda run: epochs.append(run.epoch))],
    )
    assert epochs == [4, 5, 6]  # the epoch that was interrupted was not saved yet
    for mine, its in zip(results, whole, strict=True):
        assert (
            len(mine.history.records) == len(its.history.records)
            and mine.history.stopped == its.history.stopped
        )
        for a, b in zip(mine.model.parameters(), its.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    x, y = blobs()
    path = tmp_path / "fleet.safetensors"
    Fleet(
        [
            Member(model_of(0), short()),
            Member(model_of(1), short()),
        ]
    ).train(x, y, checkpoint=path)
    (written,) = tmp_path.iterdir()
    written.write_bytes(written.read_bytes()[:-50])
    with pytest.raises(FileError):
        Fleet(
            [
                Member(model_of(0), short()),
                Member(model_of(1), short()),
            ]
        ).train(x, y, checkpoint=path)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
        ).double()

    def forward(self, x):
        return self.layers(x)


def with_dropout():
    return nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.3), nn.Linear(6, 3)).double()


@pytest.mark.parametrize(
    ("make", "why"), [(Norm, "running statistics"), (with_dropout, "random numbers")]
)
def test_models_that_cannot_be_stacked_are_trained_one_by_one(make, why):
    x, y = blobs()
    torch.manual_seed(0)
    members = [Member(make(), short(seed=i)) for i in range(2)]
    alone = [copy.deepcopy(member.model) for member in members]
    with pytest.warns(UserWarning, match=why):
        results = Fleet(members).train(x, y)
    for i, model in enumerate(alone):
        train(model, x, y, members[i].method)
        for mine, its in zip(results[i].model.parameters(), model.parameters(), strict=True):
            assert torch.equal(mine, its)


def test_a_fleet_too_large_for_the_memory_is_split(monkeypatch):
    x, y = blobs()

    def members():
        return [Member(model_of(i), short(seed=i)) for i in range(5)]

    whole = Fleet(members()).train(x, y)
    each = fleet_module.memory_per_member(model_of(0), 2, ROWS, short().training)
    monkeypatch.setattr(fleet_module, "free_memory", lambda device: int(3.5 * each))
    sizes = set()
    with pytest.warns(UserWarning, match="2 at a time"):
        split = Fleet(members()).train(
            x, y, callbacks=[After(lambda run: sizes.add(len(run.members)))]
        )
    assert sizes == {2, 1}
    for mine, its in zip(split, whole, strict=True):
        for a, b in zip(mine.model.parameters(), its.model.parameters(), strict=True):
            assert_close(a, b, atol=1e-9, rtol=1e-7)


class Crowded(Callback):
    """There is no memory for more than two members."""

    def on_train_begin(self, run):
        if len(run.members) > 2:
            raise torch.OutOfMemoryError("tried to allocate more than there is")


def test_an_allocation_that_fails_halves_the_fleet():
    x, y = blobs()

    def members():
        return [Member(model_of(i), short()) for i in range(4)]

    def fail(run):
        raise RuntimeError("other")

    with pytest.warns(UserWarning, match="No memory for 4 members"):
        results = Fleet(members()).train(x, y, callbacks=[Crowded()])
    assert [len(r.history.records) for r in results] == [3] * 4
    with pytest.raises(RuntimeError, match="other"):
        Fleet(members()).train(x, y, callbacks=[After(fail)])


def test_what_does_not_fit_is_refused():
    x, y = blobs()
    model = model_of(0)
    with pytest.raises(InputError, match="at least one member"):
        Fleet([])
    with pytest.raises(InputError, match="share batch_size: member 0 has 30, member 1 7"):
        Fleet(
            [
                Member(model, short()),
                Member(model_of(1), short(batch_size=7)),
            ]
        )
    with pytest.raises(ModelError, match="share parameters"):
        Fleet([Member(model, "ct_published"), Member(model, "ct_published")]).train(x, y)
    with pytest.raises(ModelError, match="same architecture"):
        Fleet(
            [Member(model, "ct_published"), Member(mlp(2, 3, (8,)).double(), "ct_published")]
        ).train(x, y)
    with pytest.raises(InputError, match=r"y \(n,\) or \(2, n\)"):
        Fleet([Member(model, "ct_published"), Member(model_of(1), "ct_published")]).train(
            x.expand(3, -1, -1), y.expand(3, -1)
        )
    with pytest.raises(InputError, match="every class index"):
        Fleet([Member(model, "ct_published"), Member(model_of(1), "ct_published")]).train(
            x, y.clamp_max(1) * 2
        )
    with pytest.raises(InputError, match="Validation rows"):
        validation = (x.expand(3, -1, -1), y.expand(3, -1))
        Fleet([Member(model, "ct_published"), Member(model_of(1), "ct_published")]).train(
            x, y, validation=validation
        )
    with pytest.raises(ModelError, match="columns"):
        Fleet(
            [Member(model_of(0, 2), "ct_published"), Member(model_of(1, 2), "ct_published")]
        ).train(x, y)


def test_a_cnn_of_the_package_can_be_stacked():
    x, y = torch.rand(12, 1, 28, 28), torch.arange(12) % 3
    members = []
    for seed in range(2):
        torch.manual_seed(seed)
        members.append(
            Member(
                cnn(784, 3),
                methods.ct_published(epochs=1, num_counterfactuals=4, seed=seed, max_steps=2),
            )
        )
    results = Fleet(members).train(x, y)
    assert all(len(result.history.records) == 1 for result in results)

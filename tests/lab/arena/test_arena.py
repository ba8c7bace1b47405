"""The arena: who takes part, at equal numbers of input gradients; results are kept, one by one, and
compared.
"""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_lab.arena import arena as room
from counterfactual_lab.arena.arena import INPUT_GRADIENTS, Arena, run_arena, usual_methods
from counterfactual_lab.arena.arena_results import arena_tables
from counterfactual_lab.arena.gradients import cap_unless_stated, input_gradients
from counterfactual_lab.runs.outcome import Outcome
from counterfactual_lab.truth.caps import Caps
from counterfactual_lab.truth.entrants import Compared, trained
from counterfactual_lab.truth.truth import bench_of, fit_of, make_bench
from counterfactual_training.datasets.frames import frame_dataset
from counterfactual_training.engine.launch import Engine
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.performance import decider, predict_logits
from counterfactual_training.training.method import Method
from counterfactual_training.training.registry import METHODS, method_names, register_method

CAPS = Caps(rows=300, individuals=30, judge_rows=150, epochs=2)
ALONE = Engine(workers=1)


@pytest.fixture(scope="module")
def fit():
    return fit_of(make_bench("Moon", False, CAPS), "Moon", 0, CAPS, protected=False)


def tiny(tmp_path, **changes):
    return Arena(
        tmp_path,
        **{"data": ["moons"], "methods": ["ct_published"], "seeds": 2, "caps": CAPS, **changes},
    )


# ---- who takes part ------------------------------------------------------------------------------


def test_all_methods_take_part_and_others_are_made_of_them():
    assert set(method_names()) < set(usual_methods())
    gated = {"conventional", "bag", "ct", "ct_published"}
    assert {f"{name} + density" for name in gated} < set(usual_methods())
    one = Compared.of("ensemble of jem(members=3)")
    assert (one.method, one.gate) == ("ensemble of jem(members=3)", "none")
    gated = Compared.of("pgd(epsilon=0.2)+best")
    assert (gated.method, gated.gate_of("LS"), gated.gate_of("MNIST")) == (
        "pgd(epsilon=0.2)",
        "both",
        "learned",
    )
    assert str(gated) == "pgd(epsilon=0.2) + best"
    assert Compared.of("ct_published(lambda_adv=0) + both").gate_of("LS") == "both"
    assert Compared.of("counternet itself").itself


def test_a_registered_method_takes_part_by_name():
    @register_method
    def halves(share: float = 0.5) -> Method:
        return Method(loss=lambda model, batch, found: None, find=lambda now: now.x)

    try:
        assert "halves" in usual_methods()
        assert Compared.of("halves(share=0.2) + density").method == "halves(share=0.2)"
    finally:
        del METHODS["halves"]


def test_counternet_is_left_out_where_there_are_three_classes(tmp_path):
    arena = tiny(
        tmp_path,
        data=["MNIST", "moons"],
        methods=["counternet", "counternet itself", "pgd"],
    )
    made = {(job[0].data, job[0].model) for job in arena.jobs}
    assert {("MNIST", "pgd"), ("Moon", "counternet")} <= made
    assert not any(data == "MNIST" and "counternet" in name for data, name in made)
    assert arena.excluded == [("MNIST", "counternet"), ("MNIST", "counternet itself")]


@pytest.mark.parametrize(
    "name", ["gated", "counternet itself + density", "ensemble of density", "ct itself", ""]
)
def test_what_cannot_be_gated_or_averaged_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="method"):
        tiny(tmp_path, methods=[name])


@pytest.mark.parametrize(
    "name, meant", [("trade", "trades"), ("jemm + density", "jem"), ("ensemble of pgdd", "pgd")]
)
def test_unknown_methods_are_refused_with_the_nearest_name(tmp_path, name, meant):
    with pytest.raises(InputError, match=f"'{meant}'"):
        tiny(tmp_path, methods=[name])


def test_unknown_data_generators_and_budgets_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="generic"):
        tiny(tmp_path, generators=["generik"])
    with pytest.raises(InputError, match="data set"):
        tiny(tmp_path, data=["mooons"])
    with pytest.raises(InputError, match="gradients"):
        tiny(tmp_path, gradients=0)
    with pytest.raises(InputError, match="no data set"):
        tiny(tmp_path, data=[])
    assert tiny(tmp_path, generators=["ecco", "ecco"]).generators == ("ecco",)


def test_a_table_too_small_to_be_judged_is_refused():
    frame = pd.DataFrame({"age": np.arange(40.0)})
    data = frame_dataset("few", frame, ["a", "b"] * 20, frame[:4], ["a", "b"] * 2)
    with pytest.raises(InputError, match="'few' leaves 40 rows to fit and 4"):
        bench_of(data, True, CAPS)


@pytest.mark.parametrize(
    "name",
    ["pgd", "trades", "jem", "dat", "ct_published", "ct_as_printed", "cheap_recourse", "cat"],
)
def test_methods_get_as_many_input_gradients(fit, name):
    method = cap_unless_stated(name, 12)(fit, fit.method(name))
    steps = method.searcher.max_steps
    if method.loss is None:
        taken = method.training.num_counterfactuals * steps / len(fit.x)
    elif name == "cat":
        taken = method.numbers["share"] * steps
    else:
        taken = method.numbers["steps"] + method.numbers.get("most", 0)
    assert taken == pytest.approx(12, rel=0.02)
    assert input_gradients(fit, name, 12) == pytest.approx(12, rel=0.02)


def test_what_a_text_states_is_not_capped(fit):
    assert input_gradients(fit, "pgd(steps=3)", 12) == 3
    assert fit.method("ct_published(epochs=7)").training.epochs == 7


def test_conventional_training_takes_no_input_gradients_and_an_ensemble_five_times_as_many(fit):
    assert input_gradients(fit, "conventional", 12) == 0
    assert input_gradients(fit, "ensemble of pgd", 12) == 60


def test_a_gate_changes_no_decision_and_an_ensemble_averages_logits_of_its_own_seeds(fit):
    names = ("conventional", "conventional + density", "ensemble")
    plain, gated, ensemble = (
        room._models(Compared.of(name), {0: fit}, 5)[0][0] for name in names
    )
    inner = decider(gated, fit.x, 2)
    assert torch.equal(predict_logits(inner, fit.x), predict_logits(plain, fit.x))
    each = torch.stack([member(fit.x) for member in ensemble.members])
    assert torch.allclose(each.mean(0), ensemble(fit.x), atol=1e-5)
    assert min(float((a - b).abs().max()) for i, a in enumerate(each) for b in each[:i]) > 0.01


def test_seeds_train_as_one_fleet_and_end_as_alone(fit):
    fits = [
        fit_of(make_bench("Moon", False, CAPS), "Moon", seed, CAPS, protected=False)
        for seed in (0, 1)
    ]
    capped = cap_unless_stated("trades", 3)
    together = trained(fits, "trades", capped)
    for model, one in zip(together, fits, strict=True):
        (alone,) = trained([one], "trades", capped)
        assert torch.allclose(model(one.x), alone(one.x), atol=1e-4)


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.check
def test_runs_are_done_once_and_a_stopped_run_resumes(tmp_path, monkeypatch):
    arena = tiny(tmp_path)
    done = []
    whole = room._run

    def stopped(work, job):
        if done:
            raise KeyboardInterrupt
        done.append(job)
        return whole(work, job)

    monkeypatch.setattr(room, "_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_arena(arena, ALONE)
    assert arena.finished == [arena.runs_of("Moon", "conventional")]
    again = []
    monkeypatch.setattr(room, "_run", lambda work, job: again.append(job) or whole(work, job))
    assert run_arena(arena, ALONE) == {} == run_arena(arena, ALONE)
    assert again == [arena.runs_of("Moon", "ct_published")]
    (tmp_path / "runs" / f"{again[0][1].id}.json").unlink()
    assert run_arena(arena, ALONE) == {}
    assert again == 2 * [arena.runs_of("Moon", "ct_published")], (
        "seeds and their refits are one fleet, so all are made"
    )
    found = [arena.store.content(run.id)["run"] for run in again[0]]
    assert [one["seed"] for one in found] == [0, 1]
    assert {one["measurement"]["rows"] for one in found} == {"tuning"}


def test_a_method_that_fails_leaves_the_others_alone(tmp_path, monkeypatch):
    whole = room._run

    def failing(work, job):
        if job[0].model == "ct_published":
            raise InputError("no luck")
        return whole(work, job)

    monkeypatch.setattr(room, "_run", failing)
    arena = tiny(tmp_path, generators=["generic"])
    assert run_arena(arena, ALONE) == {"Moon ct_published": "no luck"}
    tables = arena_tables(arena)
    assert (
        set(tables["arena"]["method"]) == {"conventional"}
        and tables["arena_ct_published"].empty
    )


@pytest.mark.check
def test_a_worker_without_the_data_gets_it_with_the_work(tmp_path):
    """A cluster's workers see no disk: what they are sent is enough, and gives the same rows."""
    arena = tiny(tmp_path, generators=["generic"])
    bench = make_bench("Moon", False, CAPS)
    sent = pickle.loads(pickle.dumps(room._Work(arena, {"Moon": bench})))  # noqa: S301 - our own bytes
    job = arena.runs_of("Moon", "conventional")
    there, here = room._run(sent, job), room._run(room._Work(arena, {}), job)
    for one, other in zip(there, here, strict=True):
        assert one.run == other.run
        pd.testing.assert_frame_equal(one.table(), other.table())


def test_refits_are_of_the_same_method_on_bootstrap_samples_and_know_no_seed_of_the_models(fit):
    drawn = [room._bootstrap(fit, number) for number in range(room.REFITS)]
    real = {tuple(row) for row in fit.x.tolist()}
    for one in drawn:
        assert one.x.shape == fit.x.shape and one.seed not in range(10)
        kinds = {tuple(row) for row in one.x.tolist()}
        assert kinds < real and len(kinds) < 0.75 * len(real)
    assert not torch.equal(drawn[0].x, drawn[1].x)
    models, refits = room._models(Compared.of("conventional + density"), {0: fit, 1: fit}, 5)
    assert set(models) == {0, 1} and len(refits) == room.REFITS
    (alone,) = trained(drawn[:1], "conventional", cap_unless_stated("conventional", 5))
    assert torch.allclose(refits[0](fit.x), alone(fit.x), atol=1e-4)  # and has no gate


def test_a_bootstrap_sample_has_every_class(fit):
    one_of_two = replace(
        fit.data, y_train=torch.zeros_like(fit.y).index_fill(0, torch.tensor([7]), 1)
    )
    few = replace(fit, data=one_of_two)
    for number in range(8):
        drawn = room._bootstrap(few, number)
        assert set(drawn.y.tolist()) == {0, 1}
        place = (drawn.y == 1).nonzero()[0, 0]
        assert torch.equal(drawn.x[place], fit.x[7])


def test_refits_judge_whether_advice_survives_retraining():
    class Constant(torch.nn.Module):
        def __init__(self, label):
            super().__init__()
            self.label = label

        def forward(self, x):
            return torch.nn.functional.one_hot(torch.full(x.shape[:1], self.label), 2).float()

    points = SimpleNamespace(x_cf=torch.zeros(2, 3), y_target=torch.tensor([1, 0]))
    found = room._retrained([Constant(1), Constant(1), Constant(0)], points)
    assert found.tolist() == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.check
@pytest.mark.parametrize("name", usual_methods())
def test_every_method_trains_and_is_measured(tmp_path, name):
    arena = tiny(tmp_path, methods=[name])
    assert run_arena(arena, ALONE) == {}
    tables = arena_tables(arena)
    assert set(tables["arena_overview"]["method"]) == {"conventional", name}
    assert np.isfinite(tables["arena_models"]["value"]).all()


# ---- tables --------------------------------------------------------------------------------------


def test_gains_against_conventional_training_have_the_right_sign(tmp_path):
    """Made-up results: half the distance, twice the cost, and one point of accuracy less."""
    arena = tiny(tmp_path, generators=["generic"])
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        [
            {
                "seed": seed,
                "row": row,
                "tau": tau,
                "setting": "generic",
                "target": 1,
                "bar": bar,
            }
            for seed in (0, 1)
            for bar, tau in enumerate((".5", ".8*", ".95*"))
            for row in range(30)
        ]
    ).assign(
        valid=1.0,
        spread=1.0,
        lof=1.0,
        ip=2.0,
        ip_star=0.1,
        changes=2.0,
        acceptance=0.5,
        retrained=0.5,
        data="Moon",
    )
    rows["nn5"] = np.tile(rng.uniform(1, 1.2, 30), 6)
    rows["cost"] = np.tile(rng.uniform(1, 1.2, 30), 6) * (1 + rows["bar"])
    rows["acceptance"] = rows["retrained"] = 0.3 + 0.2 * rows["bar"]
    floors = pd.DataFrame(
        {"model": ["real rows"] * 2, "nn5": 0.1, "row": [0, 1], "valid": 1.0, "data": "Moon"}
    )
    outcomes = [Outcome(arena.floors("Moon"), rows=floors)]
    for name, factor, accuracy in (("conventional", 1.0, 0.9), ("ct_published", 0.5, 0.89)):
        mine = rows.assign(model=name, nn5=rows["nn5"] * factor, cost=rows["cost"] / factor)
        numbers = {
            INPUT_GRADIENTS: 0,
            "accuracy": accuracy,
            "calibration_error": 0.1,
            "robust_accuracy@0.1": 0.5,
        }
        outcomes += [
            Outcome(
                run,
                numbers=numbers,
                seconds={"train": 1.0},
                rows=mine[mine["seed"] == run.seed],
            )
            for run in arena.runs_of("Moon", name)
        ]
    with arena.store.writing():
        arena.store.save("all", {one.run.id: one for one in outcomes})
    tables = arena_tables(arena)
    overview = tables["arena_overview"]
    assert set(overview["tau"]) == {".5", ".95*"}  # the bar between them is a frontier's
    ours = overview[overview["tau"] == ".5"].set_index("method").loc["ct_published"]
    assert ours["accepted"] == ours["retrained"] == pytest.approx(0.3)
    assert ours["equal_acceptance"] == ours["equal_retrained"] == pytest.approx(2)
    by = tables["arena_acceptance"].set_index("by")
    assert dict(by["cost"].round(6)) == {"other families": 2, "refits": 2}
    assert ours["nn5"] == pytest.approx(50) and ours["cost"] == pytest.approx(-100)
    base = rows["nn5"].mean()
    assert ours["excess"] == pytest.approx((base - base / 2) / (base - 0.1), rel=1e-3)
    assert ours["accuracy"] == pytest.approx(-0.01)
    assert (ours["nn5_better"], ours["nn5_worse"], ours["cost_better"], ours["cost_worse"]) == (
        1,
        0,
        0,
        1,
    )
    half = tables["arena_ct_published"][tables["arena_ct_published"]["tau"] == ".5"]
    beside = half.set_index(["method", "metric"])["verdict"]
    # Two seeds that differ by the same say nothing about a third.
    assert set(tables["arena_models"]["verdict"]) == {""}
    assert (
        beside["conventional", "nn5"] == "worse" and beside["conventional", "cost"] == "better"
    )


@pytest.mark.check
def test_own_data_are_known_by_their_content(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 10, 400), "debt": rng.normal(5, 2, 400)})
    labels = np.where(frame["age"] - 5 * frame["debt"] > 25, "yes", "no")
    data = [
        frame_dataset("people", frame[:300] + shift, labels[:300], frame[300:], labels[300:])
        for shift in (0, 1)
    ]
    one, other = (
        tiny(tmp_path, data=[own], methods=["conventional + density"], generators=["generic"])
        for own in data
    )
    assert [job[0].model for job in one.jobs] == ["conventional", "conventional + density"]
    assert one.seeds_of == {"people": [0, 1]}
    assert one.jobs[0][0].id != other.jobs[0][0].id and one.store.root == other.store.root
    assert run_arena(one, ALONE) == {}
    assert (
        set(arena_tables(one)["arena"]["data"]) == {"people"}
        and arena_tables(other)["arena"].empty
    )


@pytest.mark.check
def test_everything_a_text_can_say_takes_part(tmp_path):
    """What `ct truth` compares, too: a control, and what the classifier trains by default."""
    texts = ["conventional rescaled", "default network", "default network + density"]
    arena = tiny(tmp_path, methods=texts, generators=["generic"], seeds=1)
    assert run_arena(arena, ALONE) == {}
    models = arena_tables(arena)["arena_models"]
    assert set(models["method"]) == {"conventional", *texts}
    accuracy = models[models["metric"] == "accuracy"].set_index("method")["value"]
    assert accuracy["conventional rescaled"] == accuracy["conventional"]

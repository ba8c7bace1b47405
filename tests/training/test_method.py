"""A method by text, dict and object: names, settings, files, and functions of one's own."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training import defaults
from counterfactual_training.errors import InputError
from counterfactual_training.generators import GENERATORS, Energy
from counterfactual_training.training import methods
from counterfactual_training.training.method import FromRows, Method
from counterfactual_training.training.registry import METHODS, VALUE_METHODS, method_names

PUBLISHED = [*METHODS, "ensemble", "ensemble of jem"]
# Settings of every kind that a method may have.
OTHERS = {
    "epochs": 3,
    "learning_rate": 0.02,
    "refresh": "batch",
    "shuffle": True,
    "threads": 1,
    "seed": -2,
    "num_std": 1.5,
    "project_categories": True,
}


@pytest.fixture
def rows(make_blobs):
    return make_blobs(n=40, d=2)


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return ct.mlp(2, 2, hidden=(4,)).double()


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


@pytest.fixture
def registered():
    """``registered(make)`` registers, until the test ends."""
    before = dict(METHODS)
    yield ct.register_method
    METHODS.clear()
    METHODS.update(before)


def noisy(scale: float = 0.1, layers: tuple = (1, 2)) -> Method:
    def find(now: ct.Round) -> torch.Tensor:
        return now.x + scale * now.normal()

    def loss(model, batch, found):
        logits = model(found)
        return ct.LossTerms.sum(logits, class_loss=ct.class_loss(logits, batch.y, batch.weight))

    return Method(loss=loss, find=find)


def unpickled(method: Method) -> Method:
    return pickle.loads(pickle.dumps(method))  # noqa: S301 - ours


def same(one: Method, other: Method) -> bool:
    """Whether two methods do the same."""
    functions = ("loss", "find", "remember", "check", "values", "searches")
    return (
        one.name == other.name
        and one.settings() == other.settings()
        and one.generator.name == other.generator.name
        and all(getattr(one, name) is getattr(other, name) for name in functions)
    )


# ---- by name -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_text_dict_and_function_make_the_same(name):
    by_text = ct.make_method(f"{name}(epochs=3, learning_rate=0.02)")
    by_dict = ct.make_method({"name": name, "epochs": 3, "training.learning_rate": 0.02})
    assert same(by_text, by_dict)
    assert by_text.training.epochs == 3 and by_text.training.learning_rate == 0.02
    assert ct.make_method(by_text) is by_text
    if " " not in name:
        assert same(by_text, getattr(ct.methods, name)(epochs=3, learning_rate=0.02))


def test_train_takes_text_dict_and_method(rows):
    histories = []
    for method in (
        "pgd(epsilon=0.2, epochs=2)",
        {"name": "pgd", "epsilon": 0.2, "epochs": 2},
        ct.methods.pgd(epsilon=0.2, epochs=2),
        ct.methods.pgd(epochs=2).replace("epsilon", 0.2),
    ):
        torch.manual_seed(0)
        result = ct.train(ct.mlp(2, 2, hidden=(4,)), *rows, method)
        histories.append(result.history.to_frame()["loss"])
    assert all(history.equals(histories[0]) for history in histories)
    x, y = rows
    members = [ct.Member(network(), "pgd(epochs=1)"), ct.Member(network(), {"name": "pgd"})]
    assert [own.method.name for own in members] == ["pgd", "pgd"]
    assert ct.Fleet(members[:1]).train(x.double(), y)[0].history.last("epoch") == 1


def test_whoever_trains_names_the_method(rows):
    with pytest.raises(InputError, match=r'"bag", which classifiers have by default, or .*ct_'):
        ct.train(network(), *rows)
    with pytest.raises(TypeError, match="method"):
        ct.Member(network())


def test_the_published_method_is_counterfactual_training_as_run(rows):
    assert ct.Member(network(), "ct_published").method.to_dict() == {"name": "ct_published"}
    assert vars(ct.methods.ct_published().training) == vars(ct.TrainConfig())


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("trade", r"Unknown method 'trade'. Did you mean 'trades'\?"),
        ("PGD", "Did you mean 'pgd'"),
        ("ensemble of trade", r"Unknown method 'trade'. Did you mean 'trades'\?"),
        ("ensembel", "Did you mean 'ensemble'"),
        ("ensemble of ensemble", "one larger ensemble"),
        ({"name": "ensemble", "of": "ensemble of jem"}, "one larger ensemble"),
        ({"epsilon": 0.1}, "A method as a dict needs a name"),
        ({"name": 3}, "Unknown method 3"),
        (3, "Unknown method 3"),
        (None, "Unknown method None"),
        ("", "is written like pgd or pgd"),
        ("pgd(epsilon=0.2", "is written like pgd or pgd"),
        ("pgd(0.2)", r"written name=value, got '0.2' in 'pgd\(0.2\)'"),
        ("pgd(epsilon=0.2, epsilon=0.3)", "epsilon is stated twice"),
        ("pgd(epsilno=0.2)", "setting of the method 'pgd': 'epsilno'. Did you mean 'epsilon'"),
        ("ct_published(lambda_dif=1)", "Did you mean 'lambda_div'"),
        ("ct_published(epoch=1)", "Did you mean 'epochs'"),
        (
            "ct_published(training.epoch=1)",
            "setting of training: 'epoch'. Did you mean 'epochs'",
        ),
        ("ct_published(objective.lambda_dif=1)", "setting of objective: 'lambda_dif'"),
        (
            "ct_published(generator.max_step=1)",
            "generator 'ecco': 'max_step'. Did you mean 'max_steps'",
        ),
        ("ct_published(generator=ecoo)", "Unknown generator 'ecoo'. Did you mean 'ecco'"),
        (
            "ct_published(needs_divergence=1)",
            "setting of the method 'ct_published': 'needs_divergence'",
        ),
        ("ct_published(lambda_reg=-1)", "lambda_reg must be"),
        ("ct_published(burn_in=2)", "share of the epochs"),
        ("pgd(epsilon=0)", "epsilon must be positive and finite"),
    ],
)
def test_what_is_no_method_is_refused_with_the_nearest_name(spec, told):
    with pytest.raises(InputError, match=told):
        ct.make_method(spec)


def test_names_are_attributes_too():
    with pytest.raises(AttributeError, match="Did you mean 'trades'"):
        ct.methods.trade  # noqa: B018
    assert ct.methods.ensemble().name == "ensemble of conventional"


def test_the_registry_lists_every_published_method():
    assert method_names() == [*METHODS, "ensemble", "bag"]
    assert all(callable(getattr(methods, name)) for name in method_names())
    # The help of commands lists them without loading torch.
    listed = getattr(defaults, "METHODS", None)
    assert listed is None or list(listed) == method_names()


# ---- settings ------------------------------------------------------------------------------------


def test_short_names_are_looked_up_in_their_order():
    ours = ct.methods.ct_published()
    assert ours.path("lambda_div") == "objective.lambda_div"
    assert ours.path("learning_rate") == "training.learning_rate"
    assert ours.path("max_steps") == "generator.max_steps"
    assert ours.path("generator.learning_rate") == "generator.learning_rate"
    assert ours.path("epsilon") == "generator.epsilon"
    assert ours.path("num_std") == "num_std" and ours.path("generator") == "generator"
    # A number of its own comes first.
    assert ct.methods.pgd().path("epsilon") == "epsilon"
    assert ct.methods.pgd().path("generator.epsilon") == "generator.epsilon"


def test_settings_arrive_where_they_belong():
    numbers = {
        "decision_threshold": 0.6,
        "max_steps": 9,
        "generator.learning_rate": 0.2,
        "epsilon": 0.4,
        "lambda_cost": 0.01,
        "lambda_energy": 3.0,
        "lambda_div": 0.3,
        "lambda_reg": 0.2,
        "lambda_adv": 0.1,
        "learning_rate": 0.005,
        "burn_in": 0.25,
        "num_counterfactuals": 12,
        "budget": 0.1,
    }
    start = ct.methods.ct_published(epochs=7)
    changed = start.replace(numbers)
    told = changed.settings()
    assert {start.path(name): value for name, value in numbers.items()}.items() <= told.items()
    assert changed.generator.learning_rate == 0.2 and changed.training.learning_rate == 0.005
    assert [penalty.weight for penalty in changed.generator.penalties] == [0.01, 3.0]
    weights = {"lambda_div": 0.3, "lambda_reg": 0.2, "lambda_adv": 0.1}
    assert vars(changed.objective) == {**vars(start.objective), **weights}
    assert changed.training.epochs == 7 and changed.budget == 0.1
    assert changed.stated == {"training.epochs", *(start.path(name) for name in numbers)}
    assert start.settings() == ct.methods.ct_published(epochs=7).settings()


def test_one_by_one_or_all_at_once():
    one = (
        ct.methods.ct_published()
        .replace("max_steps", 9)
        .replace("generator.learning_rate", 0.2)
    )
    assert same(
        one, ct.methods.ct_published().replace({"generator.learning_rate": 0.2, "max_steps": 9})
    )


def test_parts_come_before_their_settings():
    method = ct.methods.ct_published(
        lambda_adv=0.0, max_steps=5, objective=ct.Objective(lambda_div=1.0), generator="generic"
    )
    assert (method.objective.lambda_adv, method.objective.lambda_div) == (0.0, 1.0)
    assert method.generator.name == "generic" and method.generator.max_steps == 5
    training = ct.TrainConfig(batch_size=7)
    assert ct.methods.ct_published(epochs=2, training=training).training == replace(
        training, epochs=2
    )


def test_what_has_no_effect_is_not_told():
    assert not any(
        name.startswith("generator") for name in ct.methods.conventional().settings()
    )
    pgd = ct.methods.pgd().settings()
    assert not any(name.startswith(("generator", "objective")) for name in pgd)
    assert pgd["epsilon"] == 0.1
    assert "generator.max_steps" in ct.methods.cat().settings()  # which searches
    per_member = ct.methods.ct_published(
        lambda_reg=torch.ones(2), epsilon=torch.tensor([0.1, 0.2])
    )
    missing = set(ct.methods.ct_published().settings()) - set(per_member.settings())
    assert missing == {"objective.lambda_reg", "generator.epsilon"}


def test_an_ablated_term_can_be_switched_on_again():
    assert ct.methods.conventional(lambda_div=0.5).objective.needs_divergence
    assert not ct.methods.ct_published(lambda_adv=0).objective.needs_adversarial


@pytest.mark.parametrize("name", METHODS)
def test_replacing_a_number_of_its_own_keeps_all_other_settings(name):
    start = METHODS[name](generator="generic", max_steps=4, **OTHERS)
    numbers = [own for own, value in start.numbers.items() if type(value) is float]
    for own in numbers:
        changed = start.replace(own, 0.5)
        assert changed.numbers == {**start.numbers, own: 0.5}
        assert {**changed.settings(), own: 0} == {**start.settings(), own: 0}
        assert changed.generator is start.generator and changed.name == name
        assert changed.loss is METHODS[name](**changed.numbers).loss
        assert changed.loss is None or changed.loss is not start.loss


def test_numbers_of_ones_own_may_decide_any_setting(registered):
    @registered
    def patient(steps: int = 7, rounds: int = 4) -> Method:
        return Method(
            generator=ct.ecco(max_steps=steps), training=ct.TrainConfig(epochs=rounds)
        )

    method = ct.methods.patient(learning_rate=0.5).replace({"steps": 9, "rounds": 5})
    assert method.generator.max_steps == 9 and method.training.epochs == 5
    assert method.training.learning_rate == 0.5
    assert str(method) == "patient(steps=9, rounds=5, learning_rate=0.5)"
    # What was stated stays.
    kept = ct.methods.patient(max_steps=3, epochs=2).replace({"steps": 9, "rounds": 5})
    assert kept.generator.max_steps == 3 and kept.training.epochs == 2


def test_a_method_made_by_hand_has_no_numbers_to_change():
    own = Method("own", loss=cross_entropy, numbers={"scale": 1.0})
    with pytest.raises(InputError, match=r"'own' was made by hand.*register a function"):
        own.replace("scale", 2.0)


def test_the_baseline_and_another_seed_leave_the_rest():
    printed = ct.methods.ct_as_printed(lambda_class=2.0)
    plain = printed.conventional()
    assert not plain.needs_counterfactuals and plain.objective.lambda_class == 2.0
    assert plain.training == printed.training and plain.num_std == 3.0
    assert plain.to_dict()["name"] == "conventional"
    assert same(ct.make_method(plain.to_dict()), plain)
    assert ct.methods.cheap_recourse().conventional().budget is None
    assert same(ct.methods.pgd(epochs=3).conventional(), ct.methods.conventional(epochs=3))
    assert ct.methods.ensemble(of="pgd", members=3).conventional().members == 3
    assert ct.methods.counternet().conventional().training.batch_size == 128
    values = ct.make_method("ct_published(epochs=3)", values=True)
    assert same(values.conventional(), ct.make_method("conventional(epochs=3)", values=True))
    seeded = printed.seeded(3)
    assert seeded.training == replace(printed.training, seed=3) and seeded.num_std == 3.0


# ---- as text and in files ------------------------------------------------------------------------


def test_a_method_is_printed_as_it_is_written():
    assert str(ct.methods.ct_published()) == "ct_published"
    assert repr(ct.methods.pgd(epsilon=0.2)) == "Method('pgd(epsilon=0.2)')"
    method = ct.methods.ct_published(lambda_reg=0.25, max_steps=20, epochs=2, budget=0.1)
    text = "ct_published(lambda_reg=0.25, generator.max_steps=20, epochs=2, budget=0.1)"
    assert str(method) == text and same(ct.make_method(text), method)
    assert str(ct.methods.trades(epsilon=0.2, epochs=2)) == "trades(epsilon=0.2, epochs=2)", (
        "where a short name is that of its own number, the setting is dotted"
    )
    # A generator's learning rate is never short: that is the training's.
    assert str(ct.methods.ct_published().replace("generator.learning_rate", 0.2)) == (
        "ct_published(generator.learning_rate=0.2)"
    )
    assert str(ct.methods.cat().replace("generator.epsilon", 0.2)) == (
        "cat(generator.epsilon=0.2)"
    )
    assert str(ct.methods.ensemble(of="jem", members=3, steps=2)) == (
        "ensemble of jem(steps=2, members=3)"
    )


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("others", [{}, OTHERS, {"generator": "generic"}], ids=["", "", "g"])
def test_files_and_text_hold_every_published_method(name, others):
    method = ct.make_method({"name": name, **others})
    for own, value in method.numbers.items():
        if type(value) is float:
            method = method.replace(own, value / 2)
        elif type(value) is int:
            method = method.replace(own, value + 1)
    if method.needs_counterfactuals:
        method = method.replace({"max_steps": 3, "generator.learning_rate": 0.3})
    if method.loss is None:
        method = method.replace({"lambda_class": 2.0, "budget": 0.2})
    values = method.to_dict()
    assert json.loads(json.dumps(values)) == values
    assert same(ct.make_method(values), method)
    assert same(ct.make_method(str(method)), method)
    assert str(ct.make_method(values)) == str(method)


@pytest.mark.parametrize("name", VALUE_METHODS)
def test_files_hold_methods_of_regressions(name):
    method = ct.make_method({"name": name, **OTHERS, "max_steps": 3}, values=True)
    assert method.values
    assert same(ct.make_method(json.loads(json.dumps(method.to_dict())), values=True), method)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Method("own", loss=cross_entropy), "'own' holds objects of your own .loss"),
        (lambda: replace(ct.methods.pgd(), loss=cross_entropy), "loss"),
        (lambda: replace(ct.methods.pgd(), find=lambda now: now.x), "find"),
        (
            lambda: ct.methods.ct_published(objective=type("Own", (ct.Objective,), {})()),
            "objective",
        ),
        (lambda: ct.methods.ct_published(generator=ct.Generator("own")), "generator"),
        (lambda: ct.methods.ct_published(generator=ct.ecco(decay="none")), "generator"),
        (lambda: ct.methods.ct_published(lambda_reg=torch.ones(2)), "objective.lambda_reg"),
        (lambda: ct.methods.cat(augment=lambda now: now.x), "augment"),
    ],
)
def test_objects_of_ones_own_cannot_be_written(make, what):
    method = make()
    with pytest.raises(InputError, match=rf"{what}.*ct\.register_method"):
        method.to_dict()
    # It is printed all the same.
    assert str(method).startswith(method.name)


def test_a_generator_that_needs_arguments_can_be_printed_not_written(monkeypatch):
    def pulled(strength, **settings):
        return ct.Generator("pulled", penalties=(), **settings)

    monkeypatch.setitem(GENERATORS, "pulled", pulled)
    method = ct.methods.ct_published(
        generator=ct.make_generator("pulled", strength=2.0, max_steps=4)
    )
    assert str(method).startswith("ct_published(generator=pulled")
    with pytest.raises(InputError, match="generator"):
        method.to_dict()


# ---- generators that learn from rows -------------------------------------------------------------


@pytest.mark.parametrize("name", ["gravitational", "revise"])
def test_a_generator_that_learns_from_rows_is_made_when_they_are_known(name, rows):
    method = ct.methods.ct_published(
        generator=name, max_steps=3, epochs=1, num_counterfactuals=8, batch_size=20
    )
    assert isinstance(method.generator, FromRows)
    assert method.generator.settings == {"max_steps": 3}
    assert str(method).startswith(f"ct_published(generator={name}, generator.max_steps=3")
    assert same(ct.make_method(method.to_dict()), method)
    assert same(ct.make_method(str(method)), method)
    x, y = rows
    made = method.with_rows(x, y)
    assert made.generator.name == name and made.generator.max_steps == 3
    assert made.with_rows(x + 1, y) is made and made.training == method.training
    # By name, it learns from the rows it trains on.
    by_name, by_hand = (ct.mlp(2, 2, hidden=(4,)) for _ in range(2))
    by_hand.load_state_dict(by_name.state_dict())
    ct.train(by_name, x, y, method)
    ct.train(by_hand, x, y, made)
    assert torch.equal(weights(by_name), weights(by_hand))


@pytest.mark.parametrize("own_rows", [False, True])
def test_members_of_a_fleet_learn_from_their_rows(own_rows, rows):
    x, y = rows[0].double(), rows[1]
    if own_rows:
        x, y = torch.stack([x, 3 * x + 1]), torch.stack([y, 1 - y])
    method = ct.methods.ct_published(
        generator="gravitational", max_steps=5, epochs=2, num_counterfactuals=20, seed=1
    ).replace({"decision_threshold": 0.6, "generator.learning_rate": 0.5})
    members = [ct.Member(network(i), method) for i in range(2)]
    ct.Fleet(members).train(x, y)
    for i, member in enumerate(members):
        alone = network(i)
        ct.train(alone, *((x[i], y[i]) if own_rows else (x, y)), method)
        assert_close(weights(member.model), weights(alone), atol=1e-9, rtol=1e-7)


def test_rows_of_a_data_set_cannot_be_learned_from(rows):
    data = torch.utils.data.TensorDataset(*rows)
    method = ct.methods.ct_published(generator="wachter", epochs=1)
    told = "'wachter' learns from training rows"
    with pytest.raises(InputError, match=told):
        ct.train(ct.mlp(2, 2), data, method=method)
    with pytest.raises(InputError, match=told):
        ct.Fleet([ct.Member(ct.mlp(2, 2), method) for _ in range(2)]).train(data)


# ---- functions of one's own ----------------------------------------------------------------------


def test_a_registered_function_is_a_method_like_any_other(registered, rows):
    made = registered(noisy)
    assert "noisy" in method_names() and ct.methods.noisy is made
    method = ct.make_method("noisy(scale=0.3, epochs=2, layers=(3, 4))")
    assert method.numbers == {"scale": 0.3, "layers": (3, 4)} and method.name == "noisy"
    assert str(method) == "noisy(scale=0.3, layers=(3, 4), epochs=2)"
    assert same(ct.make_method(json.loads(json.dumps(method.to_dict()))), method)
    assert same(method.replace("scale", 0.1), ct.methods.noisy(layers=[3, 4], epochs=2))
    x, y = rows[0].double(), rows[1]
    by_text, by_object = network(), network()
    ct.train(by_text, x, y, str(method))
    ct.train(by_object, x, y, method)
    assert torch.equal(weights(by_text), weights(by_object))
    with pytest.raises(InputError, match="Did you mean 'scale'"):
        ct.methods.noisy(scales=1.0)


def test_equal_numbers_share_a_loss_so_that_fleets_stack(registered, rows, recwarn):
    registered(noisy)
    x, y = rows[0].double(), rows[1]
    groups = []

    class Groups(ct.Callback):
        def on_train_begin(self, run: ct.Run) -> None:
            groups.append(list(run.members))

    specs = ["noisy(scale=0.2, seed=1)", "noisy(scale=0.2, learning_rate=0.01)", "noisy"]
    chosen = [ct.make_method(spec).replace("epochs", 2) for spec in specs]
    assert chosen[0].loss is chosen[1].loss is not chosen[2].loss
    members = [ct.Member(network(i), method) for i, method in enumerate(chosen)]
    ct.Fleet(members).train(x, y, callbacks=[Groups()])
    assert groups == [[0, 1], [2]] and not recwarn.list
    for i, member in enumerate(members):
        alone = network(i)
        ct.train(alone, x, y, chosen[i])
        assert_close(weights(member.model), weights(alone), atol=1e-9, rtol=1e-7)


def test_an_ensemble_of_a_registered_method(registered, rows):
    registered(noisy)
    x, y = rows[0].double(), rows[1]
    model = ct.Ensemble([network(i) for i in range(2)])
    method = ct.make_method("ensemble of noisy(scale=0.2, members=2, epochs=2, seed=4)")
    assert same(ct.make_method(method.to_dict()), method) and method.members == 2
    changed = method.replace("scale", 0.3)
    assert changed.members == 2 and changed.name == "ensemble of noisy"
    ct.train(model, x, y, method)
    alone = network(1)
    ct.train(alone, x, y, "noisy(scale=0.2, epochs=2, seed=5)")
    assert_close(weights(model.members[1]), weights(alone), atol=1e-9, rtol=1e-7)


def test_functions_that_cannot_be_methods_are_refused(registered):
    def needs(scale) -> Method:
        return Method()

    def takes(*scales) -> Method:
        return Method()

    def ensemble() -> Method:
        return Method()

    def pgd() -> Method:
        return Method()

    def nothing() -> Method:
        return None

    for make, told in (
        (needs, "names and defaults, which 'scale' of 'needs' lacks"),
        (takes, "names and defaults, which 'scales' of 'takes' lacks"),
        (lambda scale=1.0: Method(), "'<lambda>' cannot be one"),
        (ensemble, "'ensemble' cannot be one"),
        (pgd, "'pgd' is a method of this package; give your function another name"),
    ):
        with pytest.raises(InputError, match=told):
            registered(make)
    registered(nothing)
    with pytest.raises(InputError, match=r"'nothing' must return a ct\.Method, got NoneType"):
        ct.make_method("nothing")
    registered(noisy)
    registered(noisy)  # a cell of a notebook runs again
    with pytest.raises(InputError, match="layers must be a number, a text, a tuple"):
        ct.methods.noisy(layers={})


# ---- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_copies_are_the_same_method(name):
    method = ct.make_method({"name": name, **OTHERS})
    assert copy.deepcopy(method) is method and clone(method, safe=False) is method
    again = unpickled(method)
    assert same(again, method), "another process has the functions that its registry makes"
    assert again.stated == method.stated and again.to_dict() == method.to_dict()
    ours = ct.Member(network(), method)
    assert copy.deepcopy(ours).method is ours.method


def test_a_method_is_never_changed():
    method = ct.methods.ct_published()
    with pytest.raises(AttributeError):
        method.num_std = 3.0
    pickled = unpickled(replace(method, name="other", make=None))
    assert pickled.name == "other" and pickled.settings() == method.settings()


# ---- the numbers of the paper --------------------------------------------------------------------


def test_as_run():
    method = ct.methods.ct_published()
    training = method.training
    assert (training.epochs, training.batch_size, training.learning_rate) == (100, 30, 1e-3)
    assert (training.num_counterfactuals, training.burn_in) == (1000, 0.0)
    assert (training.shuffle, training.refresh) == (False, "epoch")
    assert (training.target_rule, training.adversarial_label) == ("not_predicted", "true")
    assert training.immature == "replace"
    assert (method.generator.learning_rate, method.generator.strict_epsilon) == (0.1, False)
    assert method.num_std == 2.0
    energy = next(p for p in method.generator.penalties if isinstance(p, Energy))
    assert (energy.weight, energy.decay, energy.ridge) == (5.0, "polynomial", 1e-3)


def test_as_printed():
    method = ct.methods.ct_as_printed()
    training = method.training
    assert (training.shuffle, training.target_rule) == (True, "uniform")
    assert (training.immature, training.refresh) == ("keep", "batch")
    assert (method.generator.learning_rate, method.generator.strict_epsilon) == (0.25, True)
    assert method.num_std == 3.0
    energy = next(p for p in method.generator.penalties if isinstance(p, Energy))
    assert (energy.decay, energy.ridge) == ("none", 0.0)


# ---- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs must be a whole number of at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"epochs": 2.5}, "whole number"),
        ({"num_counterfactuals": 0}, "num_counterfactuals"),
        ({"max_bad_updates": 0}, "max_bad_updates"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"threads": 0}, "threads must be a whole number of at least 1, got 0"),
        ({"threads": 2.5}, "threads must be a whole number of at least 1, got 2.5"),
        ({"threads": True}, "threads must be a whole number"),
        ({"positives": 0}, "positives must be a whole number of at least 1"),
        ({"positives": 1.5}, "positives must be a whole number of at least 1"),
        ({"positives": True}, "positives must be a whole number of at least 1"),
        ({"burn_in": 1.5}, r"share of the epochs in \[0, 1\], got 1.5"),
        ({"burn_in": float("nan")}, "share of the epochs"),
        ({"refresh": "epochs"}, "Did you mean 'epoch'"),
        ({"target_rule": "not_predict"}, "Did you mean 'not_predicted'"),
        ({"adversarial_label": "tru"}, "Did you mean 'true'"),
        ({"immature": "kept"}, "Did you mean 'keep'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        ct.TrainConfig(**settings)
    with pytest.raises(InputError, match=message):
        ct.methods.ct_published(**settings)


def test_numbers_of_numpy_are_as_good():
    training = ct.TrainConfig(seed=np.int64(-3), threads=np.int32(2))
    assert (training.seed, training.threads) == (-3, 2)
    assert type(training.seed) is type(training.threads) is int
    assert ct.TrainConfig(threads=None).threads is None


@pytest.mark.parametrize(
    ("burn_in", "epochs", "expected"),
    [(0.0, 10, 0), (0.25, 10, 2), (0.3, 10, 3), (1.0, 10, 10)],
)
def test_burn_in_is_a_share(burn_in, epochs, expected):
    assert ct.TrainConfig(burn_in=burn_in, epochs=epochs).burn_in_epochs == expected

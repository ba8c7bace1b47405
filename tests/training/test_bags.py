"""Members that train on rows of their own choice, and bags of them."""

import pytest
import torch
from test_fleet import After, blobs, model_of, short
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training import methods
from counterfactual_training.errors import InputError, InputWarning, ModelError
from counterfactual_training.training.fleet import members_of
from counterfactual_training.training.rows import (
    DrawnRows,
    TrainingRows,
    draw_with_replacement,
)


def places(seed, y):
    return draw_with_replacement(y, torch.Generator().manual_seed(seed))


def weights_of(model):
    return torch.cat([own.detach().flatten() for own in model.parameters()])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shuffle": True, "refresh": "batch"},
        {"lambda_div": 0.0, "lambda_reg": 0.0, "lambda_adv": 0.0},
    ],
    ids=str,
)
def test_a_member_trains_as_if_it_were_given_its_rows(settings):
    x, y = blobs()
    weight = torch.linspace(0.5, 2.0, len(y), dtype=torch.float64)
    method = short(**settings)
    method = method.replace("constraints", ct.Constraints.infer(x))
    rows = [places(seed, y) for seed in (1, 2)]
    members = [ct.Member(model_of(seed), method.seeded(seed), rows[seed]) for seed in (0, 1)]
    alone = [model_of(seed) for seed in (0, 1)]
    ct.Fleet(members).train(x, y, sample_weight=weight)
    for seed in (0, 1):
        mine = rows[seed]
        ct.train(alone[seed], x[mine], y[mine], method.seeded(seed), sample_weight=weight[mine])
        assert_close(
            weights_of(members[seed].model), weights_of(alone[seed]), atol=1e-9, rtol=1e-7
        )


def test_members_that_stop_take_their_rows_with_them():
    x, y = blobs()
    method = short(epochs=6).replace("constraints", ct.Constraints.infer(x))
    rows = [places(seed, y) for seed in range(4)]
    members = [ct.Member(model_of(i), method.seeded(i), rows[i]) for i in range(4)]

    def stop(run):
        if run.epoch == 2:
            for i in (0, 2):
                run.stop("enough", i)

    ct.Fleet(members).train(x, y, callbacks=[After(stop)])
    alone = model_of(3)
    ct.train(alone, x[rows[3]], y[rows[3]], method.seeded(3))
    assert_close(weights_of(members[3].model), weights_of(alone), atol=1e-9, rtol=1e-7)


def test_a_bag_is_its_members_on_bootstrap_samples():
    x, y = blobs()
    bag = ct.Ensemble([model_of(i) for i in range(3)])
    method = ct.make_method(
        {
            "name": "bag of ct_published",
            "members": 3,
            "epochs": 2,
            "num_counterfactuals": 30,
            "seed": 5,
        }
    )
    method = method.replace("constraints", ct.Constraints.infer(x))
    assert method.bootstrap and method.members == 3
    alone = model_of(1)
    drawn = draw_with_replacement(y, torch.Generator().manual_seed(6))
    one = method.replace({"members": 1, "bootstrap": False}).seeded(6)
    ct.train(bag, x, y, method)
    ct.train(alone, x[drawn], y[drawn], one)
    assert_close(weights_of(bag.members[1]), weights_of(alone), atol=1e-9, rtol=1e-7)
    # Not all rows, and not the same for all members.
    assert len(drawn.unique()) < len(y)
    assert not torch.equal(drawn, draw_with_replacement(y, torch.Generator().manual_seed(7)))


def test_a_bag_infers_the_box_of_all_rows():
    x, y = blobs()
    own = members_of([model_of(0), model_of(1)], methods.bag("ct_published"), y)
    data = DrawnRows(TrainingRows(x, y, 3), torch.stack([member.rows for member in own]))
    assert data.possible(1) is x
    assert data.span[0].shape == (2, 1, 2)
    assert torch.equal(data.span[1][1, 0], x.amax(0))


def test_no_class_is_missed():
    y = torch.zeros(400, dtype=torch.long)
    y[7] = 1
    y[9] = 2
    for seed in range(200):
        drawn = draw_with_replacement(y, torch.Generator().manual_seed(seed))
        assert len(drawn) == 400
        assert y[drawn].unique().tolist() == [0, 1, 2]


def test_a_class_that_no_row_has_is_not_waited_for():
    y = torch.tensor([0, 0, 2, 2])
    drawn = draw_with_replacement(y, torch.Generator().manual_seed(0))
    assert set(y[drawn].tolist()) == {0, 2}


def test_rows_without_weight_do_not_count_as_drawn():
    y = torch.arange(300) % 3
    weight = torch.zeros(300)
    weight[6] = 2.0  # of class 0, none of class 1, and of class 2 a few
    weight[[2, 5, 8]] = 1.0
    for seed in range(100):
        rng = torch.Generator().manual_seed(seed)
        drawn = draw_with_replacement(y, rng, weight)
        assert 6 in drawn and weight[drawn][y[drawn] == 2].any()
        assert y[drawn].unique().tolist() == [0, 1, 2]
        assert weight[draw_with_replacement(y / 3.5, rng, weight)].any()
    # With weights everywhere it is the draw that it was.
    plain, heavy = (
        draw_with_replacement(y, torch.Generator().manual_seed(5), weight)
        for weight in (None, torch.ones(300))
    )
    assert torch.equal(plain, heavy)


def test_numbers_are_drawn_too():
    y = torch.linspace(0, 1, 50)
    drawn = draw_with_replacement(y, torch.Generator().manual_seed(0))
    assert len(drawn) == 50 and int(drawn.max()) < 50


def test_rows_that_do_not_fit():
    x, y = blobs()
    rows = torch.arange(60)
    with pytest.raises(InputError, match="equally many rows"):
        ct.Fleet(
            [ct.Member(model_of(0), short(), rows), ct.Member(model_of(1), short())]
        ).train(x, y)
    with pytest.raises(InputError, match="lie between 0 and 119"):
        ct.Fleet([ct.Member(model_of(0), short(), rows + 100)]).train(x, y)
    with pytest.raises(InputError, match="that all share"):
        ct.Fleet([ct.Member(model_of(0), short(), rows) for _ in range(2)]).train(
            torch.stack([x, x]), torch.stack([y, y])
        )
    data = torch.utils.data.TensorDataset(x, y)
    with pytest.raises(InputError, match="give x and y as tensors"):
        ct.train(ct.Ensemble([model_of(i) for i in range(10)]), data, method="bag")


def test_bags_by_name():
    assert str(ct.make_method("bag of pgd(epsilon=0.2)")) == "bag of pgd(epsilon=0.2)"
    assert ct.make_method("bag").members == 5
    assert str(methods.bag(members=3)) == "bag of conventional(members=3)"
    assert ct.make_method(methods.bag("jem").to_dict()).bootstrap
    for text in ("bag of bag", "ensemble of bag of pgd", "bag of ensemble of pgd"):
        with pytest.raises(InputError, match="one larger ensemble"):
            ct.make_method(text)
    with pytest.raises(InputError, match="bootstrap"):
        ct.make_method("ct_published(bootstrap=2)")


def test_a_model_becomes_a_bag_of_copies_of_it():
    x, y = blobs()
    model = model_of(0)
    five = ct.Ensemble([model_of(0) for _ in range(5)])
    trained = ct.train(model, x, y, "ct(epochs=2)").model
    ct.train(five, x, y, "ct(epochs=2)")
    assert len(trained.members) == 5 and trained.members[0] is model
    for mine, its in zip(trained.members, five.members, strict=True):
        assert_close(weights_of(mine), weights_of(its), atol=1e-12, rtol=0)
    assert not torch.equal(weights_of(trained.members[1]), weights_of(model))


def images(num=60):
    x = torch.randn(num, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(num) % 3
    x[torch.arange(num), 0, y] += 2  # a bright line
    return x, y


def test_a_bag_of_images_learns_from_its_nascent_counterfactuals():
    x, y = images()
    torch.manual_seed(0)
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    )
    result = ct.train(cnn, x, y, "ct(members=2, epochs=30, batch_size=20, learning_rate=0.01)")
    assert len(result.model.members) == 2 and result.model(x).shape == (60, 3)
    assert (result.model(x).argmax(-1) == y).float().mean() > 0.9
    assert result.history.last("adversarial") > result.history.last("class_loss") > 0


class Uncopied(torch.nn.Linear):
    def __deepcopy__(self, memo):
        raise TypeError("holds a lock")


class Shared(torch.nn.Linear):
    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize("method", ["bag", "ct"])
@pytest.mark.parametrize("kind", [Uncopied, Shared])
def test_a_model_that_cannot_be_copied_trains_alone_and_says_so(kind, method):
    x, y = blobs()
    lone = kind(2, 3).double()
    with pytest.warns(InputWarning, match=rf"instead of 5: {kind.__name__} cannot be copied"):
        assert ct.train(lone, x, y, f"{method}(epochs=1)").model is lone
    for text in (f"{method}(members=3)", "ensemble"):
        with pytest.raises(
            ModelError, match=r"(cannot be copied|would learn alike). Pass ct.Ensemble"
        ):
            ct.train(lone, x, y, text)


@pytest.mark.parametrize("name", ["bag", "ct"])
def test_where_copies_would_not_do(name):
    x, y = blobs()
    with pytest.warns(InputWarning, match="would learn alike"):
        ct.train(model_of(0), x, y, f"{name}(epochs=1, bootstrap=False)")
    with pytest.warns(InputWarning, match="the optimizer belongs to one network"):
        ct.train(model_of(0), x, y, f"{name}(epochs=1)", optimizer=torch.optim.SGD)
    data = torch.utils.data.TensorDataset(x, y)
    with pytest.warns(InputWarning, match="not from a data set"):
        ct.train(model_of(0), data, method=f"{name}(epochs=1)")
    rare = y.clone()
    rare[rare == 2] = 0
    rare[0] = 2
    with pytest.warns(InputWarning, match="class 2 has one row"):
        ct.train(model_of(0), x, rare, f"{name}(epochs=1)")
    # Who made several keeps them, and is told what they are worth.
    several = ct.Ensemble([model_of(i) for i in range(5)])
    with pytest.warns(InputWarning, match="Class 2 has one row, which every member of the bag"):
        assert len(ct.train(several, x, rare, f"{name}(epochs=1)").model.members) == 5
    with pytest.raises(ModelError, match="would learn alike"):
        ct.train(model_of(0), x, y, "ensemble")


def test_a_member_that_diverges_is_left_out(monkeypatch):
    x, y = blobs()
    trained = ct.Fleet.train

    def second_fails(fleet, *rows, **options):
        results = trained(fleet, *rows, **options)
        results[1].history.diverged = True
        return results

    monkeypatch.setattr(ct.Fleet, "train", second_fails)
    bag = ct.Ensemble([model_of(i) for i in range(3)])
    with pytest.warns(UserWarning, match="Of 3 members 1 diverged and are left out"):
        sound = ct.train(bag, x, y, "bag(epochs=1)").model
    assert list(sound.members) == [bag.members[0], bag.members[2]]


def test_constraints_that_leave_no_counterfactual():
    x, y = blobs()
    rules = ct.Constraints.infer(x, mutability={0: "none", 1: "none"})
    record = ct.train(model_of(0), x, y, "ct(epochs=3)", rules).history.records[-1]
    # Nascent counterfactuals are then the rows themselves.
    assert record["mean_steps"] == 0 and 0 < record["adversarial"] < 3


@pytest.mark.parametrize("name", ["bag", "ct"])
def test_a_member_of_a_fleet_is_one_network_and_says_so(name):
    x, y = blobs()
    alone, fleet = model_of(0), [model_of(0), model_of(1)]
    ct.train(alone, x, y, f"{name}(epochs=2, members=1)")
    ct.Fleet([ct.Member(model, f"{name}(epochs=2, members=1)") for model in fleet]).train(x, y)
    assert_close(weights_of(fleet[0]), weights_of(alone), atol=1e-9, rtol=1e-7)
    with pytest.raises(InputError, match=r"Member 0 is an ensemble: .* 5 networks.* members=1"):
        ct.Fleet([ct.Member(model_of(0), name)])

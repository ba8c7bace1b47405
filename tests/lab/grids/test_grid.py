"""Grid files: what they say, what they must not say, and which models they come to."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from counterfactual_lab.grids.file import load_grid, parse_grid, shipped_grids
from counterfactual_lab.grids.grid import Grid, runs_of
from counterfactual_lab.grids.grid_run import GridRun
from counterfactual_lab.grids.settings import KEYS, canonical, method_from, published
from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.errors import FileError, InputError

PAPER = {name: load_dataset(name, "as_run").settings for name in ("LS", "Moon", "OL")}
TWO_AXES = """
data = ["LS", "Moon"]
seeds = 2
[generator]
max_steps = [5, 10, 20]
[training]
burn_in = [0.0, 0.5]
epochs = 3
"""


def points(text: str, source: str = "my.toml"):
    return list(parse_grid(text, source).points(PAPER))


def test_the_papers_grids_have_as_many_settings_as_the_paper_says():
    grids = shipped_grids()
    assert {name: grid.num_settings for name, grid in grids.items()} == {
        "generators": 270,
        "penalties": 270,
        "other": 48,
        "learning-rate": 18,
        "tuning": 18,
    }
    assert all(
        grid.data == ("LS", "Circ", "Moon", "OL")
        for name, grid in grids.items()
        if grid.num_settings > 20
    )
    assert all(len(grid.data) == 9 for name, grid in grids.items() if grid.num_settings == 18)
    for grid in grids.values():
        assert grid.measurement.on == "train"
        assert grid.measurement.protocol.lambda_energy == (0.1, 0.5, 1.0, 5.0, 10.0)
        assert (
            grid.measurement.protocol.num_individuals,
            grid.measurement.protocol.num_runs,
        ) == (100, 5)


def test_the_generators_grid_is_270_different_models_of_which_half_are_baselines():
    found = list(load_grid("generators").changed(["moon"]).points(PAPER))
    runs = runs_of(found)
    assert len(found) == len(runs) == len({run.id for run in runs}) == 270
    assert sum(run.is_conventional for run in runs) == 135
    # What was not yet tuned has the defaults of Note 1, whatever was published for Moon later.
    assert {run.values["objective.lambda_reg"] for run in runs if not run.is_conventional} == {
        0.1
    }
    # A model and its baseline start from the same weights; two settings do not.
    assert all(point.run.seed == point.conventional.seed for point in found)
    assert len({point.run.seed for point in found}) == 135


def test_a_grid_is_the_product_of_its_lists_and_what_is_missing_is_as_published():
    grid = parse_grid(TWO_AXES, "my.toml")
    found = list(grid.points(PAPER))
    assert grid.num_settings == 6 and grid.num_points == len(found) == 24
    assert set(grid.axes) == {"generator.max_steps", "training.burn_in"}
    assert grid.name == "my" and grid.seeds == (0, 1)
    moon = next(point.run.values for point in found if point.data == "Moon")
    assert (moon["generator.decision_threshold"], moon["objective.lambda_reg"]) == (0.9, 0.25)
    assert moon["training.epochs"] == 3 and moon["model.hidden"] == (32,)
    # One baseline per data set and seed: conventional training knows neither steps nor burn-in.
    assert len({point.conventional for point in found}) == 4


def test_settings_that_decide_the_same_numbers_are_one_model():
    text = 'data = "LS"\n[generator]\nname = ["ecco", "generic"]\nlambda_energy = [1, 5]\n'
    found = points(text)
    assert len(found) == 4 and len({point.run for point in found}) == 3
    own = points("own_seeds = true\n" + text)
    assert len({point.run for point in own}) == 4


def test_a_method_is_its_numbers_however_they_are_written():
    named = points('data = "LS"\nmethod = "ct_published(lambda_adv=0)"\n')[0].run
    weighted = points('data = "LS"\n[objective]\nlambda_adv = 0\n')[0].run
    assert (
        named == weighted
        and named.id == weighted.id
        and named.text == "ct_published(lambda_adv=0)"
    )
    nothing = 'data = "LS"\nmethod = "ct_published(lambda_div=0, lambda_reg=0, lambda_adv=0)"\n'
    assert points(nothing)[0].run == points('data = "LS"\nmethod = "conventional"\n')[0].run
    # Steps of a search change nothing where nothing is searched.
    idle = points('data = "LS"\nmethod = "pgd"\n[generator]\nmax_steps = [5, 50]\n')
    assert idle[0].run == idle[1].run != idle[0].conventional


def test_what_a_text_states_counts_before_the_values_of_the_grid_and_the_data_set():
    method = 'data = "Moon"\nmethod = "ct_published(lambda_reg=0, epochs=7)"\n'
    text = method + "[objective]\nlambda_reg = 0.3\n"
    point = points(text + "[training]\nepochs = 3\n")[0]
    assert point.run.values["objective.lambda_reg"] == 0.0
    assert point.run.values["training.epochs"] == 7
    assert point.conventional.values["training.epochs"] == 7
    other = points('data = "Moon"\nmethod = "cheap_recourse"\n')[0].run
    assert other.values["generator.decision_threshold"] == 0.5  # its own, not Moon's .9


def test_methods_with_numbers_are_an_axis_and_registered_ones_take_part():
    from counterfactual_training.training.method import Method
    from counterfactual_training.training.registry import METHODS, register_method

    @register_method
    def softly(strength: float = 1.0) -> Method:
        return Method(loss=lambda model, batch, found: None)

    names = ["conventional", "pgd(epsilon=0.1)", "pgd(epsilon=0.2)", "softly(strength=2.0)"]
    text = f'data = "LS"\nmethod = {json.dumps(names)}\n'
    try:
        grid = parse_grid(text, "my.toml")
        found = [point.run for point in grid.points(PAPER)]
        assert [run.text for run in found] == [
            "conventional",
            "pgd",
            "pgd(epsilon=0.2)",
            "softly(strength=2.0)",
        ]
        assert len({run.id for run in found}) == 4 and set(grid.axes) == {"method"}
        assert all(canonical(run.method) == canonical(method_from(run.values)) for run in found)
    finally:
        del METHODS["softly"]


@pytest.mark.parametrize("name", sorted(set(KEYS) - {"generator.name"}))
def test_every_setting_decides_the_identity(name):
    """Nothing that changes numbers may be left out of it."""
    run = points('data = "LS"')[0].run
    value = run.values.get(name)
    words = {
        "refresh": "batch",
        "target_rule": "prior",
        "adversarial_label": "predicted",
        "immature": "drop",
        "activation": "tanh",
        "gate": "density",
        "method": "pgd",
    }
    last = name.rpartition(".")[2]
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, tuple):
        other = [16]
    elif isinstance(value, str):
        other = words[last]
    else:
        other = value / 2 if isinstance(value, float) and value else value + 1
    # JSON writes these values as TOML does.
    changed = points(f'data = "LS"\n{name} = {json.dumps(other)}\n')[0].run
    assert changed.id != run.id


def test_seed_data_and_measurement_decide_the_identity_and_order_does_not():
    run = points('data = "LS"\n[generator]\nmax_steps = 7\nepsilon = 0.2\n')[0].run
    same = points('data = "ls"\n[generator]\nepsilon = 0.2\nmax_steps = 7\n')[0].run
    assert run.id == same.id
    others = [
        replace(run, seed=1),
        replace(run, data="OL"),
        points(
            'data = "LS"\n[generator]\nmax_steps = 7\nepsilon = 0.2\n[evaluation]\nnum_runs = 6\n'
        )[0].run,
        points(
            'data = "LS"\n[generator]\nmax_steps = 7\nepsilon = 0.2\n[evaluation]\non = "test"\n'
        )[0].run,
    ]
    assert len({run.id, *(other.id for other in others)}) == 5


def test_canonical_settings_build_the_same_method():
    run = points(
        'data = "LS"\nmethod = "ct_published(lambda_adv=0)"\n[generator]\nname = "generic"\n'
    )[0].run
    made = replace(run, seed=3).method
    assert "generator.lambda_energy" not in run.values
    assert vars(made.objective) == vars(
        published("ct_published(lambda_adv=0)", PAPER["LS"]).objective
    )
    assert (made.generator.name, made.generator.decision_threshold) == ("generic", 0.5)
    assert (made.training.seed, made.training.batch_size) == (3, PAPER["LS"].batch_size)


def test_runs_survive_the_trip_through_json():
    for name in ("main", "generators"):
        point = next(load_grid(name).changed(["LS"]).points(PAPER))
        for run in (point.run, point.conventional):
            again = GridRun.from_content(json.loads(json.dumps(run.content())))
            assert again == run and again.id == run.id


def test_the_papers_tables_are_grids():
    found = list(load_grid("main").changed(["LS"]).points(PAPER))
    runs = runs_of(found)
    assert {run.model for run in runs} == {
        "conventional",
        "ct_published",
        "ct_published protected",
    } and len(runs) == 3 * 5
    assert len({run.label for run in runs}) == len({run.id for run in runs}) == 15
    assert all(run.alone for run in runs)
    assert [len(load_grid("main").seeds_of(name)) for name in ("LS", "MNIST")] == [5, 3]
    attribution = runs_of(list(load_grid("attribution").changed(["LS"]).points(PAPER)))
    assert {run.model for run in attribution} == {
        "conventional",
        "ct_published protected",
    } and set(attribution) < set(runs)
    ablation = runs_of(list(load_grid("ablation").changed(["LS"], 1).points(PAPER)))
    assert {run.model for run in ablation} == {
        "conventional",
        "ct_published",
        "ct_published(lambda_adv=0)",
        "ct_published(lambda_div=0, lambda_reg=0)",
    }


def test_the_papers_models_train_with_the_published_settings():
    """Reference: batch, τ, n_CE and λ_reg per data set; the rest common."""
    expected = {
        "LS": (30, 0.5, 1000, 0.01),
        "Moon": (30, 0.9, 1000, 0.25),
        "OL": (30, 0.5, 1000, 0.25),
    }
    for point in load_grid("main").changed(list(expected)).points(PAPER):
        run = point.run
        if run.model == "ct_published" and run.seed == 3:
            method = run.method
            config = method.training
            found = (
                config.batch_size,
                method.generator.decision_threshold,
                config.num_counterfactuals,
            )
            assert (*found, method.objective.lambda_reg) == expected.pop(run.data)
            assert (config.epochs, config.learning_rate, config.shuffle, config.seed) == (
                100,
                1e-3,
                False,
                3,
            )
            assert (method.objective.lambda_div, method.objective.lambda_adv) == (0.5, 0.25)
            assert (method.generator.max_steps, method.generator.learning_rate) == (30, 0.1)
    assert not expected


def test_the_number_of_individuals_depends_on_the_kind_of_data():
    paper = {**PAPER, "CH": PAPER["LS"], "MNIST": PAPER["LS"]}
    points = load_grid("main").changed(["LS", "CH", "MNIST"], 1).points(paper)
    found = {point.data: point.run.measurement.protocol.num_individuals for point in points}
    assert found == {"LS": 250, "CH": 100, "MNIST": 25}


def test_a_file_extends_another_and_has_its_own_quick_look():
    text = 'extends = "main"\ndata = "LS"\n[quick]\nseeds = 1\ntraining.epochs = 3\n'
    grid, quick = parse_grid(text, "my.toml"), parse_grid(text, "my.toml", quick=True)
    assert grid.name == quick.name == "my" and grid.title == "" and grid.alone
    assert (
        (grid.seeds, quick.seeds) == ((0, 1, 2, 3, 4), (0,)) and quick.quick and not grid.quick
    )
    assert dict(grid.values)["training.epochs"] == (100,) and dict(quick.values)[
        "training.epochs"
    ] == (3,)


def test_settings_can_be_changed_by_name():
    grid = load_grid(
        "main", changes={"burn_in": 0.5, "evaluation.num_runs": 7, "generator.max_steps": 9}
    )
    values = dict(grid.values)
    assert values["training.burn_in"] == (0.5,) and values["generator.max_steps"] == (9,)
    assert (
        grid.measurement.protocol.num_runs == 7
        and dict(grid.changes)["training.burn_in"] == 0.5
    )
    with pytest.raises(InputError, match=r"Did you mean 'training\.burn_in'"):
        load_grid("main", changes={"burnin": 0.5})


def test_a_gate_changes_what_is_measured_and_not_what_is_trained():
    text = 'data = "LS"\nown_seeds = true\ngate = ["none", "density"]\n'
    plain, gated = points(text)
    before = points('data = "LS"\nown_seeds = true\n')[0]
    assert plain.run.id == before.run.id != gated.run.id
    assert gated.run.ungated == plain.run and gated.run.seed == plain.run.seed
    assert gated.conventional == plain.conventional == before.conventional
    assert gated.conventional.gate == "none"


def test_a_grid_survives_the_trip_through_json():
    for grid in [
        *shipped_grids().values(),
        parse_grid('data="LS"\n[model]\nhidden=[[8],[8,8]]\n', "g.toml"),
    ]:
        assert Grid.from_content(json.loads(json.dumps(asdict(grid)))) == grid


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('data="LS"\n[generator]\nmax_step=3', "Did you mean 'generator.max_steps'"),
        ('data="LS"\nepochs=3', "Did you mean 'training.epochs'"),
        ('data="LS"\n[trainin]\nepochs=3', "Did you mean 'training'"),
        ('data="LS"\n[evaluation]\nnum_run=3', "Did you mean 'evaluation.num_runs'"),
        ('data="Mon"', "Did you mean 'Moon'"),
        ('data="LS"\n[generator]\nname="eco"', "Did you mean 'ecco'"),
        ('data="LS"\nmethod=["ct_published","conventionl"]', "Did you mean 'conventional'"),
        ('data="LS"\nmethod="pgd(epsilom=1)"', "Did you mean 'epsilon'"),
        ('data="LS"\n[training]\nepochs="3"', "training.epochs is a whole number, got '3'"),
        (
            'data="LS"\n[training]\nepochs=[1, 2.5]',
            "training.epochs is a whole number, got 2.5",
        ),
        ('data="LS"\n[training]\nepochs=-1', "at least 0"),
        ('data="LS"\n[training]\nburn_in=2', "share of the epochs"),
        ('data="LS"\n[training]\nshuffle=1', "true or false"),
        ('data="LS"\n[training]\nimmature="keeep"', "Did you mean 'keep'"),
        ('data="LS"\n[generator]\ndecision_threshold=[0.5, 1.5]', "probability"),
        ('data="LS"\n[generator]\nmax_steps=true', "a whole number, got True"),
        ('data="LS"\n[generator]\nlambda_cost=-1', "at least 0"),
        ('data="LS"\n[generator]\nlambda_energy=inf', "finite"),
        ('data="LS"\n[generator]\nmax_steps=[]', "empty list"),
        ('data="LS"\n[generator]\nmax_steps=[5, 5]', "more than once"),
        ('data="LS"\n[objective]\nlambda_reg=nan', "finite"),
        ('data="LS"\n[model]\nhidden=[0]', "positive"),
        ('data="LS"\n[model]\nhidden=32', "one per hidden layer"),
        ('data="LS"\n[model]\nactivation="rel"', "Did you mean 'relu'"),
        ('data="LS"\ngenerator="ecco"', "is a table"),
        ('data="LS"\nprotected="yes"', "true or false"),
        ('data="LS"\nseeds=0', "1 or more"),
        ('data="LS"\nseeds="3"', "seeds is a whole number, got '3'"),
        ('data="LS"\n[evaluation]\non="tst"', "Did you mean 'test'"),
        ('data="LS"\n[evaluation]\nnum_runs=[1,2]', "one value"),
        ('data="LS"\n[evaluation]\nnum_runs=0', "positive"),
        ('data="LS"\n[evaluation]\ndecision_threshold=3.0', "probability"),
        ('data="LS"\n[evaluation]\nlambda_energy=[-1.0]', "not negative"),
        ('data="LS"\n[evaluation]\nprotocol="publishd"', "Did you mean 'published'"),
        ('data="LS"\n[evaluation]\nprotected="as_traind"', "true or false"),
        ('data="LS"\n[evaluation]\npaired=-1', 'a number of individuals or "all"'),
        ('data="LS"\n[evaluation.num_individuals]\nimage=5', "Did you mean 'images'"),
        ('extends="mian"', "Did you mean 'main'"),
        ("seeds=1", "data is missing"),
        ("data=[]", "data is missing"),
        ("data=3", "data is a text, got 3"),
        ("data=", "not TOML"),
    ],
)
def test_mistakes_are_named_with_the_file_before_anything_runs(text, complaint):
    with pytest.raises(InputError, match=r"my\.toml") as caught:
        parse_grid(text, "my.toml")
    assert complaint in str(caught.value)


def test_unknown_names_and_missing_files(tmp_path):
    with pytest.raises(InputError, match="Did you mean 'generators'"):
        load_grid("generator")
    with pytest.raises(FileError, match="cannot be read"):
        load_grid(tmp_path / "none.toml")
    path = Path(tmp_path / "mine.toml")
    path.write_text('data = "LS"\n')
    assert load_grid(path).name == "mine"


def test_a_million_settings_are_counted_without_being_made():
    values = ", ".join(str(1 + i) for i in range(100))
    lambdas = ", ".join(f"{i / 7:.4f}" for i in range(100))
    grid = parse_grid(
        f'data="LS"\n[generator]\nmax_steps=[{values}]\nlambda_energy=[{lambdas}]\n[objective]\nlambda_div=[{lambdas}]\n',
        "huge.toml",
    )
    assert grid.num_points == 1_000_000


def test_quick_and_other_data_and_seeds():
    grid = load_grid("other")
    quick = grid.changed(["OL"], 2, quick=True)
    assert quick.data == ("OL",) and quick.seeds == (0, 1) and quick.quick
    assert dict(quick.values)["training.epochs"] == (5, 10)
    assert quick.measurement.protocol.num_runs < grid.measurement.protocol.num_runs
    with pytest.raises(InputError, match="1 or more"):
        grid.changed(seeds=0)


def test_a_method_is_changed_by_its_name():
    assert dict(load_grid("main", changes={"method": "pgd"}).values)["method"] == ("pgd",)


def test_the_grid_in_the_documentation_is_one():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "grids.md").read_text(
        encoding="utf-8"
    )
    text = page.partition('```toml title="mine.toml"\n')[2].partition("```")[0]
    assert "8 settings × 2 data sets × 3 seeds" in text
    grid = parse_grid(text, "docs")
    assert (grid.num_settings, grid.num_points) == (8, 48)
    for name in (key.rpartition(".")[2] for key in KEYS if not key.startswith("training.")):
        assert f"`{name}`" in page


def test_a_grid_extends_a_file_beside_it_but_not_itself(tmp_path):
    (tmp_path / "base.toml").write_text('data = ["Moon"]\n[training]\nepochs = 5\n')
    (tmp_path / "more.toml").write_text('extends = "base.toml"\nseeds = 2\n')
    grid = load_grid(tmp_path / "more.toml")
    assert (grid.name, grid.data, grid.seeds) == ("more", ("Moon",), (0, 1))
    assert dict(grid.values)["training.epochs"] == (5,)
    (tmp_path / "base.toml").write_text('extends = "more.toml"\n')
    with pytest.raises(InputError, match="circle"):
        load_grid(tmp_path / "more.toml")


def test_a_method_with_a_generator_of_its_own_is_a_run_like_any():
    (point,) = points('data = "LS"\nmethod = "ct(members=1, bootstrap=False)"\n')
    again = point.run.method
    assert again.generator.name == "nascent" and again.generator.epsilon == pytest.approx(
        0.1001
    )

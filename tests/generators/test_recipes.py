"""Published methods as recipes, and a user's own beside them."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from counterfactual_training import (
    Generator,
    ecco,
    fit_vae,
    generic,
    linear,
    make_generator,
    mlp,
    register_generator,
    revise,
    search,
)
from counterfactual_training.errors import InputError
from counterfactual_training.generators import (
    GENERATORS,
    Distance,
    Energy,
    FeatureSpace,
    LatentSpace,
)


def test_the_page_on_generators_lists_all():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "generators.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    # It takes models, so it has no name.
    assert sorted({*rows} - {"step_rule", "betarce"}) == sorted(GENERATORS)
    weights = {
        n
        for name in GENERATORS
        for n in inspect.signature(GENERATORS[name]).parameters
        if "lambda" in n
    }
    assert weights <= set(re.findall(r"`(\w+)`", page))


def test_generic_is_class_loss_and_distance():
    generator = generic(0.2, max_steps=7)
    assert [type(p) for p in generator.penalties] == [Distance] and generator.penalties[
        0
    ].weight == 0.2
    assert generator.max_steps == 7 and isinstance(generator.space, FeatureSpace)


def test_ecco_adds_the_energy():
    distance, energy = ecco(0.2, 3.0, decay="none").penalties
    assert isinstance(distance, Distance) and isinstance(energy, Energy)
    assert (energy.weight, energy.decay) == (3.0, "none")


def test_defaults_are_what_ran():
    generator = ecco()
    assert (generator.learning_rate, generator.max_steps, generator.decision_threshold) == (
        0.1,
        30,
        0.75,
    )
    assert (generator.epsilon, generator.strict_epsilon) == (0.3, False)
    assert [p.weight for p in generator.penalties] == [0.001, 5.0]
    assert (generator.penalties[1].decay, generator.penalties[1].ridge) == ("polynomial", 1e-3)


def test_revise_needs_a_vae_or_rows_to_fit_one():
    with pytest.raises(InputError, match=r"vae=fit_vae\(x\), or x_train="):
        revise()
    x = torch.randn(30, 2)
    assert isinstance(make_generator("revise", x_train=x).space, LatentSpace)
    vae = fit_vae(x, epochs=1)
    assert revise(vae).space.vae is vae and revise(vae).space.reencode


def test_revise_moves_along_the_decoder():
    """Without re-encoding every iterate is a decoded latent, so it lies on the decoder's image."""
    torch.manual_seed(0)
    line = torch.randn(200, 1) @ torch.tensor([[1.0, 2.0]])
    vae = fit_vae(line, latent_dim=1, epochs=30, learning_rate=1e-2)
    model, x = mlp(2, 2), line[:6]
    y_target = 1 - model(x).argmax(-1)
    result = search(
        model,
        x,
        y_target,
        revise(vae, reencode=False, learning_rate=0.5, decision_threshold=0.99),
    )
    assert bool((result.num_steps > 0).all())
    curve = vae.decode(torch.linspace(-8, 8, 4001).unsqueeze(1))
    assert float(torch.cdist(result.x_cf, curve).amin(1).max()) < 0.02


@pytest.mark.parametrize("reencode", [True, False])
def test_revise_descends(reencode):
    """The loss falls along the way: the target's probability rises on the whole, towards rows the
    VAE knows.
    """
    torch.manual_seed(0)
    y = torch.arange(200) % 2
    x = torch.randn(200, 4) * 0.5 + (2.0 * y - 1).unsqueeze(-1)
    model = linear(4, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.stack([-torch.ones(4), torch.ones(4)]))
        model[0].bias.zero_()
    generator = revise(
        fit_vae(x, epochs=40), reencode=reencode, decision_threshold=0.999, learning_rate=0.05
    )
    result = search(model, x, 1 - y, generator)
    before = model(x).softmax(-1).gather(1, (1 - y)[:, None])[:, 0].detach()
    moved = result.num_steps > 0
    gain = (result.confidence - before)[moved]
    assert (
        int(moved.sum()) > 150
        and float((gain > 0).float().mean()) > 0.9
        and float(gain.mean()) > 0.2
    )


def test_revise_draws_from_the_rng_it_is_given():
    torch.manual_seed(0)
    x = torch.randn(30, 3)
    model, generator = mlp(3, 2), revise(fit_vae(x, epochs=2), decision_threshold=0.99)
    y_target = 1 - model(x).argmax(-1)

    def found(seed):
        return search(
            model, x, y_target, generator, rng=torch.Generator().manual_seed(seed)
        ).x_cf

    assert torch.equal(found(1), found(1)) and not torch.equal(found(1), found(2))
    assert torch.equal(
        search(model, x, y_target, generator).x_cf, search(model, x, y_target, generator).x_cf
    )


def test_a_recipe_of_the_package_is_not_replaced():
    with pytest.raises(
        InputError,
        match="'sparse' is a generator of this package; register yours under another name",
    ):
        register_generator("sparse", generic)


def test_a_generator_of_ones_own_is_known_by_name():
    register_generator("lazy", lambda **settings: Generator("lazy", **settings))
    try:
        assert make_generator("lazy", max_steps=3).max_steps == 3
    finally:
        del GENERATORS["lazy"]
    with pytest.raises(InputError, match="Unknown generator 'lazy'"):
        make_generator("lazy")


def test_an_unknown_generator_suggests_the_nearest():
    with pytest.raises(
        InputError, match=r"Unknown generator 'eco'. Did you mean 'ecco'\? Valid: 'generic'"
    ):
        make_generator("eco")


def test_a_generator_passes_through_with_changes():
    generator = generic()
    assert make_generator(generator) is generator
    assert make_generator(generator, max_steps=3).max_steps == 3 and generator.max_steps == 30

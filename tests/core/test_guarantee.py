"""What a few models guarantee of all: against scipy, simulation and closed forms."""

import re

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta, binom

from counterfactual_training import guaranteed_share
from counterfactual_training.core.guarantee import models_needed
from counterfactual_training.errors import InputError


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("num", [1, 5, 32])
def test_the_posterior_exceeds_the_bound_with_the_confidence(num, confidence):
    """By integrating prior times likelihood, without knowing that the posterior is a Beta."""
    for accepting in (0, num // 2, num):
        bound = float(guaranteed_share(accepting, num, confidence))

        def weighed(angle, accepting=accepting):
            # p = sin² of an angle, in which Jeffreys' prior is uniform.
            return binom.pmf(accepting, num, np.sin(angle) ** 2)

        above = quad(weighed, np.arcsin(bound**0.5), np.pi / 2)[0]
        assert above / quad(weighed, 0, np.pi / 2)[0] == pytest.approx(confidence, abs=1e-6)


def test_it_is_scipys_quantile_and_rises_with_what_accepts():
    counts = np.arange(33)
    bounds = guaranteed_share(counts, 32, 0.9)
    np.testing.assert_allclose(bounds, beta(0.5 + counts, 32.5 - counts).ppf(0.1))
    assert bool((np.diff(bounds) > 0).all())
    assert bool((bounds[1:] < counts[1:] / 32).all())  # less than what was seen
    assert guaranteed_share([[3, 4]], 4).shape == (1, 2)
    # More confidence and fewer models guarantee less.
    assert guaranteed_share(30, 32, 0.99) < bounds[30]
    assert guaranteed_share(5, 5) < guaranteed_share(10, 10)


def test_it_holds_as_often_as_it_says():
    """Of shares drawn from the prior, seen through 20 models each."""
    rng = np.random.default_rng(0)
    share = rng.beta(0.5, 0.5, 20_000)
    seen = rng.binomial(20, share)
    assert np.mean(share >= guaranteed_share(seen, 20, 0.8)) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(("share", "num", "confidence"), [(0.8, 32, 0.9), (0.5, 5, 0.95)])
def test_as_many_as_needed_are_enough_and_one_less_is_not(share, num, confidence):
    needed = models_needed(share, num, confidence)
    assert guaranteed_share(needed, num, confidence) >= share
    assert guaranteed_share(needed - 1, num, confidence) < share


def test_too_few_models_are_told_how_many_would_do():
    with pytest.raises(
        InputError, match=r"5 models that all accept guarantee .* 0\.773"
    ) as told:
        models_needed(0.9, 5, 0.9)
    more = int(re.search(r"at least (\d+) models", str(told.value)).group(1))
    assert models_needed(0.9, more, 0.9) == more
    with pytest.raises(InputError, match="guarantee a share"):
        models_needed(0.9, more - 1, 0.9)
    with pytest.raises(InputError, match="Ask for a smaller share"):
        models_needed(1 - 1e-9, 5, 0.9)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="confidence must be a probability between 0 and 1"):
        guaranteed_share(1, 2, 1.0)
    with pytest.raises(InputError, match="accepting must be counts from 0 to 2"):
        guaranteed_share([0, 3], 2)
    with pytest.raises(InputError, match="num_models"):
        guaranteed_share(0, 0)
    with pytest.raises(InputError, match="share must be a share of models between 0 and 1"):
        models_needed(1.0, 9)

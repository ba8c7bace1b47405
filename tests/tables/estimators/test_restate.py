"""Rules that are changed after fit never leave an explanation by the old ones."""

import numpy as np
import pytest

from counterfactual_training.errors import ConstraintError, InputError
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

SCHEMA = {
    "degree": {
        "kind": "ordinal",
        "categories": ["none", "BSc", "MSc"],
        "mutability": "increase",
    }
}


def quick(**params):
    """A classifier that trains in well under a second."""
    small = {"epochs": 15, "learning_rate": 0.02, "random_state": 0}
    return CounterfactualClassifier(**{**small, **params})


@pytest.fixture
def own(loans):
    """A classifier that a test may change."""
    return quick(schema=SCHEMA, mutability={"age": "none"}, gate="none", epochs=4).fit(*loans)


def moved(classifier, rows):
    return set(rows.columns[classifier.explain(rows).changed.any()])


def test_mutability_and_domain_hold_from_the_next_explanation_on(own, rejected):
    rows, weights = rejected.head(20), own.model_.members[0]
    assert "debt" in moved(own, rows) and "age" not in moved(own, rows)
    own.set_params(mutability={"debt": "none"})
    assert "debt" not in moved(own, rows)
    assert own.schema_["age"].mutability == "both"  # no longer stated
    assert own.schema_["degree"].mutability == "increase"  # still stated by the schema
    own.set_params(mutability=None, domain={"debt": (9, None)})
    told = own.explain(rows)
    changed = told.changed["debt"]
    assert changed.any() and (told.frame["debt"][changed] >= 9).all()
    assert own.constraints_.directions[:2] == ("both", "both")
    assert own.model_.members[0] is weights  # nothing was trained


def test_a_dict_changed_in_place_is_noticed(own, rejected):
    own.mutability["debt"] = "none"
    assert "debt" not in moved(own, rejected.head(20))


def test_num_std_widens_the_range(own, rejected):
    narrow = own.constraints_.domain.upper.clone()
    own.set_params(num_std=5.0).explain(rejected.head(2))
    assert (own.constraints_.domain.upper[:2] > narrow[:2]).all() and own.num_std_ == 5.0


@pytest.mark.parametrize(
    "change", [{"special": {"age": [99]}}, {"schema": {"age": {"unit": "years"}}}]
)
def test_what_was_learned_with_needs_another_fit(own, rejected, tmp_path, change):
    own.set_params(**change)
    for ask in (
        lambda: own.explain(rejected.head(2)),
        lambda: own.save(tmp_path / "m.safetensors"),
    ):
        with pytest.raises(
            InputError, match=f"{next(iter(change))} changed after fit.*fit again"
        ):
            ask()
    own.predict(rejected.head(2))  # decisions have no rules


def test_bad_rules_are_refused_when_they_are_used(own, rejected):
    with pytest.raises(ConstraintError, match="which category is higher"):
        own.set_params(mutability={"branch": "increase"}).explain(rejected.head(2))
    with pytest.raises(ConstraintError, match="deb"):
        own.set_params(mutability={"deb": "none"}).explain(rejected.head(2))


@pytest.mark.check
def test_a_saved_file_follows_the_new_rules(own, rejected, tmp_path):
    own.set_params(mutability={"debt": "none"}).save(tmp_path / "m.safetensors")
    again = CounterfactualClassifier.load(tmp_path / "m.safetensors")
    assert again.schema_["debt"].mutability == "none"
    assert "debt" not in moved(again, rejected.head(10))
    again.set_params(mutability={"age": "none", "debt": "none"})
    assert not {"age", "debt"} & moved(again, rejected.head(10))


def test_the_domain_of_pixels_is_part_of_their_encoding():
    rng = np.random.default_rng(0)
    x = rng.random((60, 4))
    schema = {f"x{j}": {"kind": "pixel", "domain": (0, 1)} for j in range(4)}
    classifier = quick(schema=schema, gate="none", epochs=1).fit(x, x[:, 0] > 0.5)
    classifier.set_params(mutability={"x0": "none"}).explain(x[:2])
    with pytest.raises(InputError, match="pixel 'x0' scales it"):
        classifier.set_params(domain={"x0": (0, 2)}).explain(x[:2])

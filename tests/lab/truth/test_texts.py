"""The texts of methods in a comparison, and the runs that they name."""

import counterfactual_training as ct
from counterfactual_lab.truth.caps import Caps
from counterfactual_lab.truth.entrants import Compared
from counterfactual_lab.truth.truth import Truth

TINY = Caps(rows=300, individuals=40, judge_rows=150, epochs=2, batch_size=100)
STEPS = ct.generic(lambda_cost=0.0, learning_rate=0.1, max_steps=60)


def at(root, **changes) -> Truth:
    return Truth(root, **{"generator": STEPS, "caps": TINY, **changes})


def test_runs_are_known_by_what_a_text_means_and_by_every_setting():
    place = at("x")

    def name(text, **changes):
        return at("x", **changes).run("LS", 0, str(Compared.of(text))).id

    same = {name(text) for text in ("pgd(epsilon=0.2)", "pgd( epsilon = .20 )")}
    assert same == {place.run("LS", 0, "pgd(epsilon=0.2)").id}
    others = {
        name("pgd(epsilon=0.02)"),
        name("pgd(epsilon=0.2) + density"),
        name("pgd(epsilon=0.2)", on_test=True),
        name("pgd(epsilon=0.2)", caps=Caps()),
        name("pgd(epsilon=0.2)", kind="quick"),
        name("pgd(epsilon=0.2)", generator=None),
        place.run("LS", 1, "pgd(epsilon=0.2)").id,
        place.run("OL", 0, "pgd(epsilon=0.2)").id,
    }
    assert len(others - same) == 8


def test_texts_that_differ_in_punctuation_only_are_different_runs():
    """A name of a file made of letters and digits would be the same for both."""
    place = at("x")
    texts = (
        "ct_published(lambda_adv=1.0)",
        "ct_published(lambda_adv=10)",
        "ct_published(lambda_adv=-1)",
        "ct_published(lambda_adv=1)",
    )
    assert len({place.run("LS", 0, text).id for text in texts}) == len(texts)

"""Relations between columns, from the schema to the sentence."""

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.errors import ConstraintError, InputError
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.training import run as training_run

RELATIONS = ["paid <= loans", "ratio = debt / income", "job = pilot requires licence = yes"]


def draw(n=240, seed=0):
    """Loans and how many were paid, debt by income, and pilots, who need a licence."""
    rng = np.random.default_rng(seed)
    loans = rng.integers(1, 40, n)
    income, debt = np.round(rng.gamma(3, 10, n) + 5, 1), np.round(rng.gamma(2, 10, n), 1)
    job = rng.choice(["clerk", "pilot", "nurse"], n)
    frame = pd.DataFrame(
        {
            "loans": loans,
            "paid": (loans * rng.random(n)).astype(int),
            "income": income,
            "debt": debt,
            "ratio": np.round(debt / income, 3),
            "job": job,
            "licence": (job == "pilot") | (rng.random(n) > 0.5),
        },
        index=np.arange(n) + 1000,
    )
    score = (
        0.08 * frame["paid"] - 2 * frame["ratio"] + 0.9 * (job == "pilot") + 0.02 * income - 1
    )
    return frame, np.where(score > 0, "yes", "no")


@pytest.fixture(scope="module")
def classifier(make_quick):
    return make_quick(
        relations=RELATIONS, mutability={"loans": "none"}, gate="none", epochs=25
    ).fit(*draw())


@pytest.fixture(scope="module")
def refused(classifier):
    frame, _ = draw()
    return frame[classifier.predict(frame) == "no"]


@pytest.fixture(scope="module")
def told(classifier, refused):
    return classifier.explain(refused.head(60), target="yes", n_options=2)


def check(before, after):
    assert (after["paid"] <= after["loans"]).all()
    moved = (before[["debt", "income"]] != after[["debt", "income"]]).any(axis=1)
    assert ((after["ratio"] - after["debt"] / after["income"]).abs()[moved] <= 0.00051).all()
    assert (after["ratio"] == before["ratio"])[~moved].all()
    assert (after["licence"] | (after["job"] != "pilot")).all()


def test_counterfactuals_keep_relations_and_answer(told, classifier):
    check(told.original, told.frame)
    assert told.answered.mean() > 0.9
    assert (classifier.predict(told.frame.droplevel("option"))[told.answered] == "yes").all()


def test_what_follows_is_said_but_costs_nothing(told):
    followed = told.changed["ratio"].to_numpy()
    assert followed.any() and (told.distance[:, 4] == 0).all()
    texts = [text for text, follows in zip(told.changes(), followed, strict=True) if follows]
    assert all(", so that ratio is " in text and "with ratio" not in text for text in texts)
    assert (told.summary["num_changed"] == told.changed.to_numpy().sum(1) - followed).all()
    record = next(
        record for record, follows in zip(told.records(), followed, strict=True) if follows
    )
    assert "ratio" in record["changes"]


@pytest.mark.check
def test_no_change_can_be_undone_alone(classifier, refused):
    explanation = classifier.explain(refused.head(40), target="yes")
    for i in np.flatnonzero(explanation.converged):
        before, after = explanation.original.iloc[[i]], explanation.frame.iloc[[i]]
        for j in np.flatnonzero(explanation.distance[i]):
            name = before.columns[j]
            undone = after.assign(**{name: before[name]})
            if name in ("debt", "income"):
                undone["ratio"] = np.round(undone["debt"] / undone["income"], 3)
                if (
                    undone[["debt", "income"]].to_numpy()
                    == before[["debt", "income"]].to_numpy()
                ).all():
                    undone["ratio"] = before["ratio"]
            try:
                check(before, undone)
            except AssertionError:
                continue
            assert classifier.predict(undone)[0] == "no", (i, name)


def test_the_relation_that_stops_a_row_is_named(classifier, refused):
    explanation = classifier.explain(refused, target="yes", vary=["paid"])
    stopped = [
        text for text in explanation.changes() if '"paid <= loans" keeps paid at ' in text
    ]
    assert len(stopped) > 5
    assert (explanation.frame["paid"] <= explanation.frame["loans"]).all()


@pytest.mark.parametrize(
    ("rule", "share"),
    # A best effort does not always end where the domain does.
    [
        ({"lock": ["ratio"]}, 0.9),
        ({"domain": {"ratio": (5.0, None)}}, 0.9),
        ({"domain": {"ratio": (0.8, None)}}, 0.1),
    ],
    ids=["locked", "outside its domain", "at the end of its domain"],
)
def test_a_column_that_follows_and_may_not_change_is_named(classifier, refused, rule, share):
    """Less debt would help, and nothing forbids it but the ratio, which follows."""
    rows = refused[(refused["ratio"] > 0.9) & (refused["ratio"] < 5)]
    explanation = classifier.explain(rows, target="yes", vary=["debt"], **rule)
    missed = ~explanation.answered
    told = ['"ratio = debt / income" keeps debt at ' in text for text in explanation.changes()]
    assert missed.sum() > 10 and np.mean(np.array(told)[missed]) > share
    assert (explanation.status[np.array(told)] == "infeasible").all()


@pytest.mark.check
def test_inputs_that_could_move_together_are_not_said_to_be_held(make_finder, sentence):
    """Twice as much of both leaves the ratio as it is; only where that gains nothing is the
    relation in the way.
    """
    rng = np.random.default_rng(0)
    debt, income = rng.uniform(5, 10, 60), rng.uniform(5, 10, 60)
    frame = pd.DataFrame({"debt": debt, "income": income, "ratio": debt / income})
    held = {"mutability": {"ratio": "none"}, "relations": ["ratio = debt / income"]}
    (text,) = sentence(
        make_finder(frame, [0.0, 0.0, -5.0], bias=-9.0, **held), frame.iloc[[0]]
    ).changes()
    assert '"ratio = debt / income" keeps ' in text
    (text,) = sentence(
        make_finder(frame, [1.0, 1.0, -5.0], bias=-99.0, **held), frame.iloc[[0]]
    ).changes()
    assert "keeps" not in text


@pytest.mark.check
def test_a_relation_of_two_free_columns_is_named(make_finder, sentence):
    """Either column could make room for the other, but only by what it loses itself."""
    frame = pd.DataFrame({"a": np.linspace(0, 10, 41), "b": np.linspace(0, 10, 41)})
    finder = make_finder(frame, [1.0, 1.0], bias=-1.0)
    row = frame.iloc[[20]]
    free = sentence(finder, row)
    assert free.answered.all()
    finder = make_finder(frame, [1.0, 1.0], bias=-1.0, relations=["a + b <= 10"])
    (text,) = sentence(finder, row).changes()
    assert '"a + b <= 10" keeps ' in text


@pytest.mark.check
def test_a_category_that_needs_another_one_is_named(classifier, refused):
    rows = refused[(refused["job"] != "pilot") & ~refused["licence"]]
    explanation = classifier.explain(rows, target="yes", vary=["job"])
    assert (explanation.frame["job"] != "pilot").all()
    assert any(
        '"job = pilot requires licence = yes" keeps job at ' in text
        for text in explanation.changes()
    )
    free = classifier.explain(rows, target="yes", vary=["job", "licence"])
    pilots = free.frame["job"] == "pilot"
    assert pilots.any() and free.frame["licence"][pilots].all()


def test_rows_that_break_a_relation_are_told_and_not_made_worse(classifier, refused):
    rows = refused.head(20).assign(paid=refused.head(20)["loans"] + 3)
    explanation = classifier.explain(rows, target="yes")
    label, loans = rows.index[0], rows["loans"].iloc[0]
    assert (
        f'Row {label} breaks "paid <= loans" already (paid {loans + 3}, loans {loans}).'
        in explanation.notes
    )
    assert '10 more row(s) break "paid <= loans" already.' in explanation.notes
    assert explanation.notes[0] in str(explanation)
    assert (explanation.frame["paid"] <= rows["paid"]).all()


def test_what_does_not_match_keeps_its_distance(classifier):
    """A ratio that is wrong is not a reason to change income by a cent."""
    frame, _ = draw()
    rows = frame.assign(ratio=frame["ratio"] + 2.0).head(40)
    rows = rows[classifier.predict(rows) == "no"]
    explanation = classifier.explain(rows, target="yes", vary=["debt", "income"])
    after = explanation.frame
    assert explanation.changed["ratio"].any() and any(
        'breaks "ratio = debt / income"' in n for n in explanation.notes
    )
    moved = explanation.changed["ratio"].to_numpy()
    distance = (after["ratio"] - after["debt"] / after["income"]).to_numpy()[moved]
    np.testing.assert_allclose(distance, 2.0, atol=2e-3)


@pytest.mark.check
def test_questions_add_relations_for_all_rows_or_one_list_each(classifier, refused):
    rows = refused.head(12)
    both = classifier.explain(rows, target="yes", relations=["income + debt <= 60"])
    total = both.frame["income"] + both.frame["debt"]
    assert (total <= np.maximum(60, rows["income"] + rows["debt"]) + 1e-9).all()
    check(both.original, both.frame)
    lists = [["income <= 30"]] * 6 + [[]] * 6
    each = classifier.explain(rows, target="yes", relations=lists)
    assert (each.frame["income"] <= np.maximum(30, rows["income"]))[:6].all()
    check(each.original, each.frame)


@pytest.mark.check
def test_a_column_that_follows_keeps_its_own_rules(classifier, refused):
    rows = refused.head(25)
    locked = classifier.explain(rows, target="yes", lock=["ratio"])
    assert (locked.frame["ratio"] == rows["ratio"]).all()
    limited = classifier.explain(rows, target="yes", max_change={"ratio": 0.1})
    assert ((limited.frame["ratio"] - rows["ratio"]).abs() <= 0.1 + 1e-9).all()
    check(limited.original, limited.frame)


@pytest.mark.check
def test_files_keep_relations(classifier, refused, tmp_path, told):
    path = tmp_path / "model.safetensors"
    classifier.save(path)
    loaded = CounterfactualClassifier.load(path)
    assert loaded.relations == RELATIONS and loaded.schema_.relations == tuple(RELATIONS)
    again = loaded.explain(refused.head(60), target="yes", n_options=2)
    pd.testing.assert_frame_equal(again.frame, told.frame)


def test_training_searches_within_relations(make_quick, monkeypatch):
    seen, original = [], training_run.search_rows

    def search(model, x, y, generator, constraints, *args, **options):
        found = original(model, x, y, generator, constraints, *args, **options)
        seen.append((constraints.relations, x, found.x_cf))
        return found

    monkeypatch.setattr(training_run, "search_rows", search)
    make_quick(method="ct_published", gate="none", relations=RELATIONS[:2], epochs=3).fit(
        *draw()
    )
    assert seen
    for relations, x, x_cf in seen:
        assert not relations.broken(x_cf, x, 1e-4).any()
        assert torch.allclose(relations.follow(x_cf, x), x_cf, atol=1e-4)


def test_what_is_computed_cannot_come_in_steps(classifier, refused):
    with pytest.raises(ConstraintError, match="computes 'ratio', so its step cannot be kept"):
        classifier.explain(refused.head(2), target="yes", step={"ratio": 0.25})
    with pytest.raises(
        ConstraintError, match="computes 'ratio', so its allowed cannot be kept"
    ):
        CounterfactualClassifier(
            schema={"ratio": {"allowed": [0.5, 1.0]}}, relations=RELATIONS
        ).fit(*draw())


def test_columns_that_only_follow_cannot_be_all_that_varies(classifier, refused):
    rows, only = (
        refused.head(2),
        "'ratio' only follows other columns, by 'ratio = debt / income'",
    )
    with pytest.raises(ConstraintError, match=f"{only}. Vary 'debt', 'income' instead"):
        classifier.explain(rows, target="yes", vary=["ratio"])
    with pytest.raises(ConstraintError, match=f"Row {rows.index[1]}: .*{only}"):
        classifier.explain(rows, target="yes", vary=[["debt"], ["ratio", "loans"]])
    with pytest.raises(
        ConstraintError, match=r"'paid' only follows other columns.* None of these may change"
    ):
        classifier.explain(rows, target="yes", vary=["paid"], relations=["paid = 0.5 * loans"])
    with pytest.raises(
        ConstraintError, match=r"'paid' only follows .* Vary 'debt', 'income' instead"
    ):
        classifier.explain(rows, target="yes", vary=["paid"], relations=["paid = 10 - ratio"])
    told = classifier.explain(rows, target="yes", vary=["ratio", "debt"])
    assert not told.changed.drop(columns=["ratio", "debt"]).to_numpy().any()


@pytest.mark.parametrize(
    ("relations", "error", "match"),
    [
        (["payd <= loans"], ConstraintError, "Did you mean 'paid'"),
        (["paid >= 50", "paid <= 40"], ConstraintError, "contradict each other"),
        ("paid <= loans", InputError, "must be a list"),
        ([["paid <= loans"]] * 2, InputError, "2 entries for 3 rows"),
    ],
)
def test_questions_with_relations_that_cannot_be(classifier, refused, relations, error, match):
    with pytest.raises(error, match=match):
        classifier.explain(refused.head(3), relations=relations)

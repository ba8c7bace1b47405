"""Rules for columns with categories: an order, values that may be advised, changes that never
happen.
"""

import numpy as np
import pandas as pd

import counterfactual_training as ct

DEGREES = ["school", "Bachelor", "Master"]
SCHEMA = {
    "debt": {"unit": "thousand dollars", "domain": (0, None), "mutability": "decrease"},
    "degree": {
        "kind": "ordinal",
        "categories": DEGREES,
        "mutability": "increase",
    },  # a degree is not un-earned
    "job": {"allowed": ["clerk", "nurse", "engineer"]},  # nobody is told to become a prisoner
    "home": {"forbidden": [("owned", ["rented", "shared"])]},  # nobody is told to sell
}  # the same as a TOML file: schema="rules.toml", with a table [degree], [job], … per column

rng = np.random.default_rng(0)
people = pd.DataFrame(
    {
        "debt": rng.gamma(2.0, 10.0, 800).round(1),
        "degree": rng.choice(DEGREES, 800),
        "job": rng.choice(["clerk", "nurse", "engineer", "prisoner"], 800),
        "home": rng.choice(["owned", "rented", "shared"], 800),
    }
)
score = (
    1
    - 0.1 * people["debt"]
    + people["degree"].map(DEGREES.index)
    + (people["job"] == "engineer")
)
decision = np.where(score + (people["home"] != "owned") > 0.5, "granted", "refused")

classifier = ct.CounterfactualClassifier(schema=SCHEMA, epochs=20, random_state=0).fit(
    people, decision
)
print(classifier.schema_)
refused = people[classifier.predict(people) == "refused"].head(5)
print(*classifier.explain(refused, target="granted").changes(), sep="\n")

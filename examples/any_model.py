"""A model trained elsewhere, and the same question: what would have to change? Boosting has no
gradient to follow.
"""

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

import counterfactual_training as ct

rng = np.random.default_rng(0)
people = pd.DataFrame(
    {
        "age": rng.integers(18, 75, 1500),
        "income": rng.gamma(4.0, 700.0, 1500).round(-1),
        "debt": rng.gamma(2.0, 8000.0, 1500).round(-2),
        "home": pd.Categorical(rng.choice(["owned", "rented", "shared"], 1500)),
    }
)
score = (
    people["income"] / 900
    - people["debt"] / 6000
    + (people["home"] == "owned")
    + people["age"] / 50
)
decision = np.where(score + rng.normal(0, 0.5, 1500) > 2, "granted", "refused")
model = HistGradientBoostingClassifier(
    max_iter=60, categorical_features="from_dtype", random_state=0
)
model.fit(people.head(1000), decision[:1000])
print(f"accuracy {model.score(people.tail(500), decision[1000:]):.2f}")

# Any fitted classifier with predict_proba, or a torch module; the frame tells what real rows look
# like.
rules = {
    "mutability": {"age": "none", "debt": "decrease"},
    "schema": {"debt": {"unit": "dollars", "step": 500}},
}
explainer = ct.Explainer(model, people.head(1000), decision[:1000], **rules)
refused = people.tail(500)[model.predict(people.tail(500)) == "refused"].head(5)
explanation = explainer.explain(refused, target="granted", n_options=2)
print(*explanation.changes(), sep="\n")
print("granted:", (model.predict(explanation.option(1)) == "granted").all())

"""A DataFrame and a question: what would have to change for this loan to be granted? Age cannot;
debt can only fall.
"""

import torch

import counterfactual_training as ct

applicants = ct.loan(600, torch.Generator().manual_seed(0))
tomorrow = ct.loan(100, torch.Generator().manual_seed(1))

classifier = ct.CounterfactualClassifier(
    mutability={"age": "none", "debt": "decrease"},
    domain={"debt": (0, None)},
    epochs=30,
    random_state=0,
)
classifier.fit(applicants.frame, applicants.labels)
print(f"accuracy {classifier.score(tomorrow.frame, tomorrow.labels):.2f}")

refused = tomorrow.frame[classifier.predict(tomorrow.frame) == "loan withheld"].head(5)
explanation = classifier.explain(refused, target="loan granted")
print(*explanation.changes(), sep="\n")
print(explanation.summary[["status", "confidence", "cost"]].round(2).to_string())

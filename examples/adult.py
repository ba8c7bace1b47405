"""Five people of the 1994 census whose income is not above 50,000 dollars: what would have to
change?

Age, race, sex and origin cannot; education only rises. All this is in the schema that comes with
the data set.
"""

import numpy as np

import counterfactual_training as ct
from counterfactual_training.errors import FileError

try:
    data = ct.load_dataset("adult")
except FileError:
    print(
        "Skipped: adult.data is neither here nor reachable. `ct data fetch adult` says where it "
        "was looked for."
    )
    raise SystemExit from None

names = np.array(data.class_names)
classifier = ct.CounterfactualClassifier(
    schema=data.schema, epochs=3, learning_rate=0.005, random_state=0
)
classifier.fit(data.frame_train, names[data.y_train])
print(f"accuracy {classifier.score(data.frame_test, names[data.y_test]):.2f}")

people = data.frame_test[classifier.predict(data.frame_test) == "<=50K"].head(5)
print(*classifier.explain(people, target=">50K").changes(), sep="\n")

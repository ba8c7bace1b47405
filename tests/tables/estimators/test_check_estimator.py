"""scikit-learn's own contract.

Every check of ``check_estimator`` passes but one, which cannot hold where batches are drawn at
random; scikit-learn expects it to fail for its own ``SGDClassifier``. One (array API input) skips
itself unless SCIPY_ARRAY_API is set. Of its checks outside ``check_estimator`` one cannot apply,
see the last test.
"""

import numpy as np
import pandas as pd
import pytest
from sklearn.utils import estimator_checks

from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

# The frames of these checks are small; that the gate says so is tested elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore:Too few rows to judge")

EXPECTED_FAILED_CHECKS: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is not the row twice"
}


def small():
    return CounterfactualClassifier(epochs=8, learning_rate=0.03)


@estimator_checks.parametrize_with_checks(
    [small()], expected_failed_checks=lambda _: EXPECTED_FAILED_CHECKS
)
def test_contract(estimator, check):
    check(estimator)


def test_number_of_columns_is_checked():
    estimator_checks.check_n_features_in_after_fitting("CounterfactualClassifier", small())


def test_column_order_is_where_we_are_kinder_than_the_contract():
    """scikit-learn refuses a frame whose columns come in another order; here columns are matched by
    name.
    """
    with pytest.raises(AssertionError, match="predict did not raise"):
        estimator_checks.check_dataframe_column_names_consistency(
            "CounterfactualClassifier", small()
        )
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    classifier = small().fit(frame, rng.integers(0, 2, 60))
    np.testing.assert_array_equal(
        classifier.predict_proba(frame[["c", "a", "b"]]), classifier.predict_proba(frame)
    )

"""Settings of a method as nested parameters of an estimator, as scikit-learn knows them."""

from __future__ import annotations

import sys
from typing import Any, Self

from sklearn.base import BaseEstimator

from counterfactual_training.errors import InputError
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.models.shapes import describe, shape_in_words
from counterfactual_training.training.method import Method
from counterfactual_training.training.registry import make_method
from counterfactual_training.training.run import History

_NESTED = "method__"


class NestedMethod(BaseEstimator):
    """``get_params`` and ``set_params`` that reach into the method: ``method__lambda_div``,
    ``method__generator__max_steps``.
    """

    method: Any
    model_: Any
    history_: History
    trained_: str
    progress: bool | None
    verbose: bool
    # Whether it learns numbers, which have methods of their own.
    _values = False

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; ``deep`` also tells the settings of the method."""
        params = super().get_params(deep=False)
        if deep:
            try:
                settings = self._resolved_method().settings()
            except InputError:  # which ``fit`` tells, as scikit-learn wants it
                settings = {}
            params |= {
                _NESTED + path.replace(".", "__"): value for path, value in settings.items()
            }
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters; settings of the method have names such as ``method__epochs``."""
        nested = {name: params[name] for name in params if name.startswith(_NESTED)}
        super().set_params(
            **{name: value for name, value in params.items() if name not in nested}
        )
        if nested:
            changes = {
                name.removeprefix(_NESTED).replace("__", "."): value
                for name, value in nested.items()
            }
            self.method = self._resolved_method().replace(changes)
        return self

    def _resolved_method(self) -> Method:
        return make_method(self.method, values=self._values)

    @property
    def _shown(self) -> bool | None:
        """Whether to show a bar."""
        if self.verbose and self.progress is None:
            return False
        return self.progress

    def _say(self, num_rows: int) -> None:
        """Keep what was trained in one line, and show it where progress is shown."""
        params = self.get_params(deep=False)
        method = self._resolved_method()
        # What is stated beside the method wins over it.
        for name in ("epochs", "learning_rate"):
            if params[name] is not None and method.path(name) in method.stated:
                method = method.replace(name, params[name])
        several = isinstance(self.model_, Ensemble)
        if callable(params["model"]) and several:
            members = self.model_.members
            network = f"mean of {len(members)}: {type(members[0]).__name__}"
        elif callable(params["model"]):
            network = type(self.model_).__name__
        else:
            network = shape_in_words(describe(self.model_))
        gate = "no gate"
        if params["gate"] != "none":
            gate = f"{params['gate']} gate"
        said = str(method)
        if method.members > 1 and not several:
            # Of a class there are too few rows to draw samples of.
            said += ", but as one network on all rows"
        runs = sorted({epochs.run for epochs in self.epochs_})
        if runs == [1]:
            passes = "1 epoch"
        else:
            passes = f"{' to '.join(map(str, (runs[0], runs[-1])[: len(runs)]))} epochs"
        self.trained_ = (
            f"Trained by the method {said}: {network}, {gate}, {passes} on {num_rows:,} rows"
        )
        shown = self._shown
        if shown or (shown is None and sys.stderr.isatty()) or self.verbose:
            print(f"{self.trained_}.", file=sys.stderr)

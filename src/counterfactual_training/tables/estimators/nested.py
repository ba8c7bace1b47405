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

    def _method_in_words(self) -> str:
        """The method as it was written, with what is stated beside it and wins over it."""
        params = self.get_params(deep=False)
        method = self._resolved_method()
        beside = {
            name: params[name]
            for name in ("epochs", "learning_rate")
            if params[name] is not None and method.path(name) in method.stated
        }
        if isinstance(self.method, str) and not beside:
            return self.method
        return str(method.replace(beside))

    def _say(self, num_rows: int) -> None:
        """Keep what was trained in one line, and show it where progress is shown."""
        params = self.get_params(deep=False)
        if callable(params["model"]):
            network = _class_in_words(self.model_)
        else:
            network = shape_in_words(describe(self.model_))
        gate = "no gate"
        if params["gate"] != "none":
            gate = f"{params['gate']} gate"
        said = self._method_in_words()
        if self._resolved_method().members > 1 and not isinstance(self.model_, Ensemble):
            # Of a class there are too few rows to draw samples of.
            said += ", but as one network on all rows"
        runs = sorted({epochs.run for epochs in self.epochs_})
        if runs == [1]:
            passes = "1 epoch"
        else:
            ends = dict.fromkeys((runs[0], runs[-1]))
            passes = f"{' to '.join(map(str, ends))} epochs"
        self.trained_ = f"Trained by {said}: {network}, {gate}, {passes} on {num_rows:,} rows"
        shown = self._shown
        if shown or (shown is None and sys.stderr.isatty()) or self.verbose:
            print(f"{self.trained_}.", file=sys.stderr)


def _class_in_words(model: Any) -> str:
    """A network of the user's own by its class."""
    if isinstance(model, Ensemble):
        return f"{len(model.members)} times {type(model.members[0]).__name__}"
    return type(model).__name__

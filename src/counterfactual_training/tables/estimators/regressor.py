"""A regressor of data frames that explains what would have to change for a prediction in an
interval.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from counterfactual_training import defaults
from counterfactual_training.errors import InputError, check_count, check_name, from_outside
from counterfactual_training.gates import KINDS, Gate, few_rows, gate_of
from counterfactual_training.models.inside import Inside
from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.explains import NativeExplanation, in_kind
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.find import Finder
from counterfactual_training.tables.advice.points import in_blocks
from counterfactual_training.tables.advice.values import Interval, Values, of_values
from counterfactual_training.tables.columns.encode import Encoder, Missing, Unseen
from counterfactual_training.tables.columns.model_space import device_and_dtype, encode_rows
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.estimators import parameters
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.fit import Epochs, prepare
from counterfactual_training.tables.estimators.inputs import (
    frame_of,
    numbers_of,
    numeric_rows,
    restate,
    row_weights,
    seed_of,
    stated_rules,
)
from counterfactual_training.tables.estimators.inquiry import ARGUMENTS, Inquiry
from counterfactual_training.tables.estimators.nested import NestedMethod
from counterfactual_training.tables.estimators.networks import ACTIVATION, HIDDEN
from counterfactual_training.tables.estimators.value_file import load_regressor, save_regressor
from counterfactual_training.tables.estimators.value_measures import (
    measure_intervals,
    usual_intervals,
)
from counterfactual_training.torch_modes import in_plain_torch, with_gradients
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.method import Method
from counterfactual_training.training.run import History

# Training rows that are kept to judge what is plausible; an interval may hold few of them.
_KEPT = 20_000
# How far one column may well change f, in standard deviations of y, and the most points to try on
# the way there.
_REACH = 4.0
_MOST_POINTS = 512
# Outputs within this share of an edge count as outside, for the same number in double precision may
# be.
_EDGE = 1e-6


class CounterfactualRegressor(NestedMethod, RegressorMixin, BaseEstimator):
    """A scikit-learn regressor of data frames that explains what would have to change for a value
    in an interval.

    A network is trained to predict y. For each interval that is asked for, a gate learns what real
    rows with a y inside look like: advice brings the prediction into the interval where a row is at
    least as plausible as not.

    Arguments about columns, the network and its training are those of
    :class:`CounterfactualClassifier`.

    Args:
        method: in the words of the classifier. ``"conventional"`` minimises the squared error;
            ``"bag"``, as by default, are five such networks on bootstrap samples, whose mean
            predicts; ``"ct"`` is
            a bag that also learns from its own nascent counterfactuals; ``"ct_published"`` is the
            published method, with intervals between quantiles of y in place of classes
            (:mod:`regression`). With settings, ``"ct_published(lambda_div=0.01, burn_in=0.5)"``;
            or a :class:`Method` of numbers. Early stopping may well return to an epoch of the
            burn-in.
        model, hidden, activation: the network; your own function is called with ``(num_features,
            1)``.
        epochs, batch_size, learning_rate, early_stopping, validation_fraction, n_iter_no_change: of
            the training.
        scaling: of numbers in X. y is always standardised by mean and SD.
        gate: ``"density"``, ``"learned"``, ``"both"`` or ``"none"``.
        mutability, domain, schema, special, relations, num_std, unseen, missing: rules of the
            columns.
        device, random_state, progress, verbose, callbacks: as in the classifier.

    Attributes:
        n_features_in_, feature_names_in_: columns seen in ``fit``; names only if it was a frame.
        schema_, encoder_, constraints_: the columns, their encoding, and their rules in model
            space.
        model_: the trained torch module, in double precision, with one output: y, standardised.
        target_name_: what y is called in sentences: the name of the Series, else "value".
        y_mean_, y_scale_: of y.
        rows_: training rows in model space ``(n, d)`` and their y ``(n,)``, which gates are fitted
            to; some of many.
        method_: how it was trained, with all sizes.
        trained_: what ``fit`` trained, in one line; shown with the progress.
        history_: metrics by epoch; of several networks, those of the first.
        epochs_: of each network, how many epochs it trained for (``run``), and how many of them
            made its weights (``best``).

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300).frame
        >>> limit = (100 - people["debt"]).rename("limit")
        >>> model = ct.CounterfactualRegressor(
        ...     mutability={"age": "none"}, epochs=10, random_state=0
        ... )
        >>> model.fit(people, limit).predict(people[:2]).shape
        (2,)
        >>> print(model.explain(people[:1], target=(60, None)).changes()[0])  # doctest: +ELLIPSIS
        Row 0: with debt ... lower (from 46 to ...), the limit would be ..., at least 60;
            plausibility ...
    """

    def __init__(  # noqa: PLR0913  # public
        self,
        method: str | Mapping[str, Any] | Method = defaults.METHOD,
        *,
        model: str | Callable[[int, int], nn.Module] = "mlp",
        hidden: Sequence[int] = HIDDEN,
        activation: str = ACTIVATION,
        epochs: int | None = None,
        batch_size: int | str = "auto",
        learning_rate: float | None = None,
        early_stopping: bool | None = None,
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 10,
        scaling: parameters.Scaling = "robust",
        gate: str = "density",
        mutability: Mapping[str, object] | Sequence[object] | None = None,
        domain: Mapping[str, tuple[Any, Any]] | None = None,
        schema: Schema | Mapping[str, Any] | str | Path | None = None,
        special: Mapping[str, Any] | None = None,
        relations: Sequence[str] | None = None,
        num_std: float | None = 0.0,
        unseen: Unseen = "warn",
        missing: Missing = "error",
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = None,
        progress: bool | None = None,
        verbose: bool = False,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        # scikit-learn needs the explicit signature, and each argument stored as it came.
        for name, value in list(locals().items())[1:]:
            setattr(self, name, value)

    _values = True

    # ---- scikit-learn ----------------------------------------------------------------------------

    @with_gradients
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Train on rows X and their numbers y.

        Args:
            X: a pandas or polars frame, or an array ``(n, m)``. Numbers, text and categories go in
                as they are.
            y: ``(n,)`` the number of each row; the name of a Series is used in sentences.
            sample_weight: ``(n,)`` weights of the rows in the losses. Encoder, gate and rows held
                out ignore them.
            checkpoint: a file to save to while training, and to resume from if it exists.
        """
        frame, values, name = numeric_rows(self, X, y)
        mean = float(values.mean())
        scale = float(values.std())
        weights = row_weights(sample_weight, len(values))
        seed = seed_of(self.random_state)
        prepared = prepare(
            self._as_classifier(), frame, (values - mean) / scale, seed, weights, values=True
        )
        prepared = replace(prepared, checkpoint=checkpoint)
        trained = prepared.train(self._shown)
        model = trained.model
        in_training = (
            torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))[:_KEPT]
            .sort()
            .values
        )
        rows = prepared.x.cpu()[in_training], torch.as_tensor(values)[in_training]
        # Predictions in single precision would differ in the seventh digit between batches. A
        # network of your own stays as it is, for it may not work in another precision; nor do all
        # devices.
        if isinstance(self.model, str) and prepared.x.device.type in ("cpu", "cuda"):
            model = model.double()
        self._adopt(
            prepared.encoder,
            model.eval(),
            trained.histories[0],
            trained.epochs(),
            prepared.method,
            rows,
            name,
            (mean, scale),
        )
        self._say(len(values))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The predicted number of each row of X ``(n,)``, in the units of y."""
        check_is_fitted(self, "model_")
        return self._predicted(frame_of(self, X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    # ---- questions -------------------------------------------------------------------------------

    @in_plain_torch
    def explain(self, X: Any, target: Any, **rules: Any) -> Explanation:
        """What would have to change for the prediction of each row of X to lie in the target
        interval.

        Every claim holds for the rows as printed, as in the classifier. In the answer, ``decision``
        and ``prediction`` are the predicted numbers before and after.

        Args:
            X: rows like those of ``fit``.
            target: ``(None, 200_000)`` for at most 200,000, ``(150_000, None)`` for at least
                150,000, or both sides.
            rules: of this question, all that :meth:`CounterfactualClassifier.explain` takes, but
                for ``confidence`` and ``lasting``.

        Returns:
            An :class:`Explanation`, with one entry per row, or per option.
        """
        for name in rules:
            check_name("argument of explain:", name, ARGUMENTS)
        interval = Interval.from_target(target)
        explanation = self._inquiry(self._asked(X), interval).explain(X, 1, **rules)
        if isinstance(explanation, NativeExplanation):
            plain = explanation.pandas
        else:
            plain = explanation
        outcome = Values(
            interval, self.target_name_, max(0, 2 - math.floor(math.log10(self.y_scale_)))
        )
        values = self._predicted(plain.original), self._predicted(plain.frame)
        return in_kind(of_values(plain, outcome, *values, self._gates[interval]), X)

    @in_plain_torch
    def plausibility(self, X: Any, target: Any, *, given_fixed: bool = False) -> np.ndarray:
        """How much each row looks like real rows whose y lies in the target interval ``(n,)``: from
        0 to 1.

        Args:
            X: rows like those of ``fit``.
            target: an interval, as in :meth:`explain`.
            given_fixed: judge each row among those that are like it in what cannot change, as
                ``explain`` does.
        """
        inquiry = self._inquiry(self._asked(X), Interval.from_target(target))
        return inquiry.plausibility(X, given_fixed=given_fixed)[:, 1]

    def evaluate(
        self, X: Any, y: Any, target: Any = None, *, n_rows: int = 100, **rules: Any
    ) -> pd.DataFrame:
        """How good predictions and counterfactuals are on rows that were not trained on: one line
        per interval.

        ``r2`` and ``rmse`` of all rows; ``validity``, the share of rows outside the interval whose
        counterfactual is predicted inside, and ``plausible``, the share that passes the gate, too.
        Of the valid ones, the mean number of columns changed, ``sparsity``, and medians, which
        single outliers among the rows do not decide: ``cost`` (L1 in model space), ``nn5`` and
        ``ip`` (distance to the five nearest, and mean L1 distance to all, of these rows whose y
        lies in the interval).

        Args:
            X, y: rows that were not trained on, and their numbers.
            target: an interval or a list of them; by default the quarters and the middle half of
                the training y.
            n_rows: rows to explain per interval, at most.
            rules: of the questions, as in :meth:`explain`.
        """
        frame = self._asked(X)
        values, _ = numbers_of(y)
        if len(values) != len(frame):
            raise InputError(
                f"X has {len(frame)} rows but y has {len(values)}; every row needs its number."
            )
        if target is None:
            intervals = usual_intervals(self.rows_[1].numpy())
        else:
            several = isinstance(target, list) and all(
                isinstance(entry, tuple | list) for entry in target
            )
            intervals = [Interval.from_target(one) for one in (target if several else [target])]
        return measure_intervals(
            self, frame, values, intervals, check_count("n_rows", n_rows), **rules
        )

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write one file for :meth:`load`: weights, the rows that gates need, and JSON; nothing
        executable.

        Args:
            path: of the file, such as ``"prices.safetensors"``. Folders are created, an existing
                file is replaced.
        """
        check_is_fitted(self, "model_")
        self._follow_rules()
        save_regressor(path, self)

    @classmethod
    @with_gradients
    def load(
        cls,
        path: str | Path,
        *,
        model: Callable[[int, int], nn.Module] | None = None,
        method: Method | None = None,
    ) -> CounterfactualRegressor:
        """Read a regressor that :meth:`save` wrote, on the CPU; nothing in the file is executed.

        Args:
            path: of the file.
            model, method: your own objects, if the regressor was made with some.
        """
        return load_regressor(path, cls, {"model": model, "method": method})

    # ---- inside ----------------------------------------------------------------------------------

    def _adopt(
        self,
        encoder: Encoder,
        model: nn.Module,
        history: History,
        epochs: Sequence[Epochs],
        method: Method,
        rows: tuple[Tensor, Tensor],
        name: str,
        mean_and_scale: tuple[float, float],
    ) -> None:
        """Set the fitted attributes; the only place that does."""
        self.encoder_ = encoder
        self.schema_ = encoder.schema_
        # Without the constraints of model space, which ``constraints_`` holds.
        self.method_ = replace(method, constraints=None)
        self.num_std_ = method.num_std
        self.constraints_ = advice_constraints(encoder, method.num_std)
        self.model_ = model
        self.history_ = history
        self.epochs_ = list(epochs)
        self.rows_ = rows
        self.target_name_ = name
        self.y_mean_, self.y_scale_ = mean_and_scale
        self._gates: dict[Interval, Gate | None] = {}
        # Remembered as text, to notice what set_params changes later.
        self._stated = stated_rules(self.get_params(deep=False))

    def _as_classifier(self) -> dict[str, Any]:
        """The parameters as those of a classifier, which has some more, with the method made."""
        usual = CounterfactualClassifier().get_params(deep=False)
        return usual | self.get_params(deep=False) | {"method": self._resolved_method()}

    def _follow_rules(self) -> None:
        """Take over rules that were changed after ``fit``."""
        if self._stated != stated_rules(self.get_params(deep=False)):
            encoder, num_std = restate(
                self._as_classifier(), self._stated, self.encoder_, self.method_.num_std
            )
            learned = (self.rows_, self.target_name_, (self.y_mean_, self.y_scale_))
            method = replace(self.method_, num_std=num_std)
            trained = (self.model_, self.history_, self.epochs_, method)
            self._adopt(encoder, *trained, *learned)

    def _asked(self, rows: Any) -> pd.DataFrame:
        check_is_fitted(self, "model_")
        self._follow_rules()
        return frame_of(self, rows, empty=True)

    @in_plain_torch
    def _predicted(self, frame: pd.DataFrame) -> np.ndarray:
        if len(frame) == 0:
            return np.zeros(0)
        encoded = encode_rows(self.encoder_, frame, device_and_dtype(self.model_))
        return (
            in_blocks(self.model_, encoded).squeeze(-1).double().numpy() * self.y_scale_
            + self.y_mean_
        )

    def _inquiry(self, frame: pd.DataFrame, interval: Interval) -> Inquiry:
        """Questions about one interval."""
        low, high = (
            (edge - self.y_mean_) / self.y_scale_ for edge in (interval.low, interval.high)
        )
        if not math.isinf(low):
            low = low + _EDGE * (1 + abs(low))
        if not math.isinf(high):
            high = high - _EDGE * (1 + abs(high))
        if not low < high:
            raise InputError(
                f"{interval.say(0)}: this is narrower than what the model can tell apart. Choose "
                "a wider interval; the "
                f"standard deviation of {self.target_name_} is {self.y_scale_:,g}."
            )
        # As the classifier of two classes that all of advice is made for: 0 outside, 1 inside.
        inside = Inside(self.model_, low, high)
        if interval not in self._gates:
            self._gates[interval] = self._fit_gate(inside, interval)
        finder = Finder(inside, self.encoder_, self.constraints_, self._gates[interval])
        # A column may change f by some standard deviations, so that a narrow interval lies between
        # two of few points.
        points = min(_MOST_POINTS, math.ceil(_REACH / (high - low)))
        finder = replace(finder, num_points=max(finder.num_points, points))
        return Inquiry(
            self._as_classifier(), self.num_std_, frame, finder, self._in_classes(interval)
        )

    def _in_classes(self, interval: Interval) -> tuple[Tensor, Tensor]:
        """The training rows that were kept, as the model takes them, and whether their y lies
        inside: 0 or 1.
        """
        x, values = self.rows_
        x = x.to(device_and_dtype(self.model_))
        return x, torch.as_tensor(interval.holds(values.numpy()), device=x.device).long()

    def _fit_gate(self, inside: Inside, interval: Interval) -> Gate | None:
        kind = self.gate
        check_name("gate", kind, (*KINDS, "none"))
        if kind == "none":
            return None
        x, y = self._in_classes(interval)
        wanted = f"{self.target_name_} {'' if interval.closed else 'of '}{interval.say(0)}"
        if not bool(y.any()):
            least = float(self.rows_[1].min())
            most = float(self.rows_[1].max())
            raise InputError(
                f"No training row has a {wanted} (from {least:,g} to {most:,g}), so nothing "
                "tells what such a row "
                "looks like. Choose an interval that holds some, or fit with gate='none' to ask "
                "the model alone."
            )
        gate = gate_of(inside, x, y, kind, self.constraints_.to(x))
        # Nobody asks for advice that leads outside, so only what lies inside has to be judged.
        if not all(bool(part.judged[1]) for part in gate.lone):
            warnings.warn(
                str(few_rows(gate, y, ["other values", wanted], "values")),
                stacklevel=from_outside(),
            )
        return gate

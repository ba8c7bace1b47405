"""Explanations of models trained elsewhere: the same questions, rules and words as those of our own
classifier.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.errors import (
    ConstraintError,
    InputError,
    bad_value,
    check_name,
    from_outside,
)
from counterfactual_training.gates import KINDS, Gate, few_rows, gate_of
from counterfactual_training.generators import Generator, evaluating, line
from counterfactual_training.generators.model_checks import first_logits
from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.background import make_background
from counterfactual_training.tables.advice.black_box import BlackBox, probabilities_of
from counterfactual_training.tables.advice.explains import Explains
from counterfactual_training.tables.advice.find import Finder
from counterfactual_training.tables.advice.quick_pipeline import QuickPipeline
from counterfactual_training.tables.advice.testimony import (
    OtherModels,
    Witnesses,
    check_enough,
)
from counterfactual_training.tables.columns.encode import Encoder, Missing, Unseen
from counterfactual_training.tables.columns.frame import as_frame, match_columns
from counterfactual_training.tables.columns.model_space import device_and_dtype, encode_rows
from counterfactual_training.tables.columns.native import is_native
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.estimators import parameters
from counterfactual_training.tables.estimators.inputs import (
    by_column,
    refuse_missing,
    resolve_schema,
)
from counterfactual_training.tables.estimators.witnesses import Refits
from counterfactual_training.torch_modes import in_plain_torch


class Explainer(Explains):
    """Explains a fitted classifier that was trained elsewhere.

    The model is only asked for logits or ``predict_proba``: single columns first, then sets of
    them, then real rows of the target. Every claim holds for the model's most probable class of the
    frame handed back.

    Args:
        model: a torch module that maps rows of the encoder ``(n, d)`` to logits ``(n, k)``; or
            anything with ``predict_proba`` for rows like ``frame``: boosting, forests, whole
            pipelines.
        frame: background rows, such as the training data: a frame, or an array if the model takes
            arrays. They tell what the columns hold and where advice may lead, fit the gate, and are
            what answers are found along.
        y: their labels, for the gate; by default what the model predicts.
        schema, mutability, domain, special, relations: rules of the columns, as in
            :class:`CounterfactualClassifier`.
        gate: keeps advice among real rows of the target class: ``"density"`` or ``"none"``; for a
            torch module also ``"learned"`` or ``"both"``.
        encoder: fitted, of a torch module; by default one is fitted to ``frame``, as our classifier
            does.
        classes: labels, in the order of the model's outputs; by default its ``classes_``, or those
            in ``y``.
        missing: a missing value is an ``"error"``. With ``"impute"``, a torch module gets the
            median or most frequent category, and ``predict_proba`` the missing value itself; no
            advice is to leave a cell empty.
        witnesses: other models of the same rows and classes, at least four, such as yours of the
            last quarters: ``explain`` asks whether they would accept the advice.
            Torch modules beside a torch module; beside any other, whatever has ``predict_proba``.
        num_std: how far columns without a stated domain may leave the bulk of ``frame``.

    Attributes:
        classes_: labels, in the order of the model's outputs.
        schema_, encoder_, constraints_: the columns, their encoding, and their rules in model
            space.
        gate_: ``None`` without a gate.

    Examples:
        >>> import counterfactual_training as ct
        >>> from sklearn.linear_model import LogisticRegression
        >>> people = ct.loan(300)
        >>> model = LogisticRegression().fit(people.frame, people.y)
        >>> explainer = ct.Explainer(model, people.frame, mutability={"age": "none"})
        >>> told = explainer.explain(people.frame[:1], target=1)
        >>> print(told.changes()[0])  # doctest: +ELLIPSIS
        Row 0: with debt ... lower (from 46 to ...), the decision would be 1 (confidence ...
    """

    @in_plain_torch
    def __init__(  # noqa: PLR0913  # public
        self,
        model: Any,
        frame: Any,
        y: Any = None,
        *,
        schema: Schema | Mapping[str, Any] | str | Path | None = None,
        mutability: Mapping[str, object] | Sequence[object] | None = None,
        domain: Mapping[str, tuple[Any, Any]] | None = None,
        special: Mapping[str, Sequence[float]] | None = None,
        relations: Sequence[str] | None = None,
        gate: str = "density",
        encoder: Encoder | None = None,
        classes: Sequence[Any] | None = None,
        missing: Missing = "error",
        num_std: float = 0.0,
        witnesses: Sequence[Any] | None = None,
    ) -> None:
        self._torch = isinstance(model, nn.Module)
        # A learned gate is trained by searches along gradients.
        check_name("gate", gate, (*KINDS, "none") if self._torch else ("density", "none"))
        if not self._torch:
            _check_model(model, encoder)
        self.model = model
        self.missing = missing
        self.num_std_ = float(num_std)
        # Rows, then encoder, then rules: each needs what comes before it.
        rows = self._background(frame)
        if encoder is None:
            resolved = resolve_schema(rows, schema, mutability, domain, special, relations)
            # A black box is given the categories themselves, so one without a code cannot be passed
            # on.
            if self._torch:
                unseen: Unseen = "warn"
            else:
                unseen = "error"
            # Scaled as by our classifier's default.
            encoder = Encoder(resolved, unseen=unseen, missing=missing, scale="robust").fit(
                rows
            )
        else:
            if special is not None:
                raise InputError(
                    "special is part of the encoding: state it where the encoder is made, in its "
                    "schema."
                )
            encoder = _ruled(encoder, schema, mutability, domain, relations)
            self.missing = encoder.missing
        self.encoder_ = encoder
        self.schema_ = encoder.schema_
        self.constraints_ = advice_constraints(encoder, self.num_std_)
        if y is None:
            labels = None
        else:
            labels = _labels(y, len(rows))
        # Asked without a gate first: the gate is fitted to what the model says.
        module, finder, predicted = self._asking(rows, labels, classes)
        x = finder.factuals(rows).x
        y_index = (
            predicted if labels is None else torch.as_tensor(_index(labels, self.classes_))
        ).to(x.device)
        if gate == "none":
            self.gate_ = None
        else:
            self.gate_ = _fit_gate(module, x, y_index, gate, self)
        # By predicted classes, not by true ones: background rows are points that get the target.
        if self._torch:
            background = None
        else:
            background = make_background(finder, x, predicted, len(self.classes_))
        self._finder_of_fit = Finder(
            module, encoder, self.constraints_, self.gate_, background=background
        )
        if witnesses is not None:
            self.witnesses_ = self._testifying(witnesses, rows)

    @in_plain_torch
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(n, k)`` that the model gives to rows X, in the order of ``classes_``."""
        return self._finder_of_fit.logits(self._encoded(X)).softmax(-1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row of X ``(n,)``."""
        return self.classes_[self.predict_proba(X).argmax(1)]

    _without_witnesses = "pass some when it is made, Explainer(..., witnesses=models)"

    # ---- inside ----------------------------------------------------------------------------------

    def _background(self, frame: Any) -> pd.DataFrame:
        """The background rows, in the order of columns that the model knows."""
        names = getattr(self.model, "feature_names_in_", None)
        rows = as_frame(frame, None if names is None else list(names))
        if names is not None:
            rows = match_columns(rows, [str(name) for name in names])
        # scikit-learn's models warn of names if they were fitted without.
        named = isinstance(frame, pd.DataFrame) or is_native(frame)
        self._arrays = not named or (names is None and hasattr(self.model, "n_features_in_"))
        refuse_missing(rows, self.missing == "impute")
        return rows

    def _asking(
        self,
        rows: pd.DataFrame,
        labels: np.ndarray | None,
        classes: Sequence[Any] | np.ndarray | None,
    ) -> tuple[nn.Module, Finder, Tensor]:
        """The model as a torch module, its finder without a gate, and what it predicts ``(n,)``;
        sets ``classes_``.
        """
        if self._torch:
            module = self.model
            x = encode_rows(self.encoder_, rows, device_and_dtype(module))
            with evaluating(module), torch.no_grad():
                # Two rows tell the number of outputs, and whether they are logits.
                logits = first_logits(
                    module, x[:2], torch.zeros(len(x[:2]), dtype=torch.long, device=x.device)
                )
            if classes is None and labels is not None:
                classes = np.unique(labels)
            self.classes_ = _classes(classes, logits.shape[-1])
            finder = Finder(module, self.encoder_, self.constraints_)
            return module, finder, finder.logits(x).argmax(-1)
        probability = probabilities_of(self.model, rows, None, self._arrays)
        if classes is None:
            classes = getattr(self.model, "classes_", None)
        self.classes_ = _classes(classes, probability.shape[1])
        self._check_decision(rows, probability)
        if self._arrays:
            quick = None
        else:
            quick = QuickPipeline.of(self.model, rows)
        module = BlackBox(self.model, self.encoder_, len(self.classes_), self._arrays, quick)
        return (
            module,
            Finder(module, self.encoder_, self.constraints_),
            torch.as_tensor(probability.argmax(1)),
        )

    def _testifying(self, models: Sequence[Any], rows: pd.DataFrame) -> Witnesses:
        """The witnesses, once they have been asked about two rows."""
        if isinstance(models, str) or not isinstance(models, Sequence):
            raise bad_value("witnesses", "a list of fitted models", models)
        check_enough(len(models))
        modules = [isinstance(model, nn.Module) for model in models]
        witnesses: Witnesses
        if self._torch and all(modules):
            witnesses = Refits(
                [model.eval() for model in models], self.encoder_, self.classes_, "other models"
            )
        else:
            witnesses = OtherModels(models, self.classes_, self._arrays)
        some = rows[:2]
        witnesses.log_odds(some, self.classes_[np.zeros(len(some), dtype=np.int64)])
        return witnesses

    def _check_decision(self, rows: pd.DataFrame, probability: np.ndarray) -> None:
        """Warn if the model decides otherwise than by its largest probability."""
        if not hasattr(self.model, "predict"):
            return
        # A pipeline may have a threshold of its own, which probabilities do not show.
        decided = np.asarray(self.model.predict(rows.to_numpy() if self._arrays else rows))
        differ = int((decided != self.classes_[probability.argmax(1)]).sum())
        if differ:
            warnings.warn(
                f"predict of {type(self.model).__name__} is not its most probable class in "
                f"{differ} of {len(rows)} "
                "rows; explanations are about the most probable class. Ask for a higher "
                "confidence, or explain the "
                "model without its own threshold.",
                stacklevel=from_outside(),
            )

    def _asked(self, rows: Any) -> pd.DataFrame:
        names = self.schema_.names
        frame = match_columns(as_frame(rows, names), names)
        refuse_missing(frame, self.missing == "impute")
        return frame

    def _encoded(self, x: Any) -> Tensor:
        frame = self._asked(x)
        if len(frame) == 0:
            raise InputError("There are 0 rows; at least 1 is needed.", code="no_rows")
        return self._finder_of_fit.factuals(frame).x

    def _finder(self) -> Finder:
        return self._finder_of_fit

    def _explainer(
        self, generator: str | Generator | None, confidence: float | None, max_steps: int | None
    ) -> tuple[Generator, bool]:
        if not self._torch and not (generator is None and max_steps is None):
            raise InputError(
                "generator and max_steps are for searches by gradients, which "
                f"{type(self.model).__name__} has not; "
                "leave them out."
            )
        return parameters.make_explainer(line(), generator, confidence, max_steps)


def _check_model(model: Any, encoder: Encoder | None) -> None:
    # A class instead of an instance has the method too, but cannot be asked.
    if isinstance(model, type) or not hasattr(model, "predict_proba"):
        if isinstance(model, type):
            shown = model.__name__
        else:
            shown = type(model).__name__
        raise InputError(
            f"{shown} has no predict_proba and is no torch module; give a fitted classifier with "
            "probabilities, such "
            "as SVC(probability=True), or wrap it in CalibratedClassifierCV."
        )
    if encoder is not None:
        raise InputError(
            f"encoder is for torch modules; {type(model).__name__} takes rows like frame. State "
            "rules by schema, "
            "mutability and domain."
        )


def _ruled(
    encoder: Encoder, schema: Any, mutability: Any, domain: Any, relations: Any
) -> Encoder:
    """A fitted encoder with the rules stated here on top; it can still only encode the columns that
    it knows.
    """
    if not hasattr(encoder, "columns_"):
        raise InputError(
            "The encoder is not fitted yet: call its fit with the rows that the model was "
            "trained on."
        )
    names = encoder.schema_.names
    rules: dict[str, Any] = {
        "mutability": by_column(mutability, names),
        "domain": by_column(domain, names),
    }
    rules["relations"] = relations
    if isinstance(schema, Schema):
        ruled = schema.override(**rules)
    else:
        ruled = encoder.schema_.override(schema, **rules)
    # What the encoder has learned must stay; rules on top may change.
    same = [(f.name, f.kind, f.categories) for f in ruled] == [
        (f.name, f.kind, f.categories) for f in encoder.schema_
    ]
    if not same:
        raise ConstraintError(
            "schema has other columns, kinds or categories than the encoder; state only rules."
        )
    return encoder.with_schema(ruled)


def _labels(y: Any, num_rows: int) -> np.ndarray:
    labels = np.asarray(y)
    if labels.shape != (num_rows,):
        raise InputError(
            f"frame has {num_rows} rows but y has shape {labels.shape}; every row needs its class."
        )
    return labels


def _classes(stated: Any, num_outputs: int) -> np.ndarray:
    """Labels ``(k,)``; the numbers of the outputs if none are known."""
    if stated is None:
        labels = np.arange(num_outputs)
    else:
        labels = np.asarray(stated)
    # Compared as text, because labels may be of mixed types that cannot be sorted.
    if labels.shape != (num_outputs,) or len(np.unique(labels.astype(str))) != num_outputs:
        raise InputError(
            f"The model has {num_outputs} outputs, but the classes are {labels.tolist()!r}; "
            "state classes=[…], one "
            "label per output, in their order."
        )
    return labels


def _index(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Class numbers ``(n,)`` of labels."""
    positions = {label: number for number, label in enumerate(classes.tolist())}
    for label in np.unique(labels).tolist():
        check_name("label in y:", label, positions)
    return np.array([positions[label] for label in labels.tolist()], dtype=np.int64)


def _fit_gate(module: nn.Module, x: Tensor, y: Tensor, kind: str, explainer: Explainer) -> Gate:
    gate = gate_of(module, x, y, kind, explainer.constraints_)
    message = few_rows(gate, y, [repr(label) for label in explainer.classes_.tolist()])
    if message is not None:
        warnings.warn(message, stacklevel=from_outside())
    return gate

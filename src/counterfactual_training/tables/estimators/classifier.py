"""A classifier of data frames that explains what would have to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from counterfactual_training import defaults
from counterfactual_training.gates import Gate
from counterfactual_training.generators import Generator
from counterfactual_training.models.classifiers import shape_of
from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.explains import Explains
from counterfactual_training.tables.advice.find import Finder
from counterfactual_training.tables.advice.testimony import Witnesses
from counterfactual_training.tables.columns.encode import Encoder, Missing, Unseen
from counterfactual_training.tables.columns.model_space import device_and_dtype, encode_rows
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.estimators import parameters
from counterfactual_training.tables.estimators.file import (
    Origin,
    load_classifier,
    save_classifier,
)
from counterfactual_training.tables.estimators.fit import Epochs
from counterfactual_training.tables.estimators.inputs import (
    frame_of,
    restate,
    seed_of,
    stated_rules,
)
from counterfactual_training.tables.estimators.learning import LearningMethods
from counterfactual_training.tables.estimators.nested import NestedMethod
from counterfactual_training.tables.estimators.networks import ACTIVATION, HIDDEN
from counterfactual_training.torch_modes import in_plain_torch, with_gradients
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.method import Method
from counterfactual_training.training.run import History

ModelFactory = Callable[[int, int], nn.Module]


class CounterfactualClassifier(
    LearningMethods, Explains, NestedMethod, ClassifierMixin, BaseEstimator
):
    """A scikit-learn classifier of data frames that explains what would have to change for another
    decision.

    By default five networks are trained on bootstrap samples, a bag, and a gate learns what real
    rows of each class look like: advice flips the decision where a row is at least as plausible as
    not. Decisions are the networks' alone. ``method="ct"`` trains the same bag by Counterfactual
    Training, ``"conventional"`` a single network.

    A schema states more about columns, see :class:`Feature`; what it leaves out is inferred from
    the data. Categories never seen in training are not recommended, unless ``allowed`` lists them.

    Settings of the method are nested parameters, as scikit-learn's pipelines have them:
    ``set_params(method__lambda_div=0.25, method__generator__max_steps=50)``.

    ``set_params`` after ``fit``: new ``mutability``, ``domain`` and ``num_std`` hold from the next
    explanation on; the gate still takes as given what could not change in ``fit``. Other rules need
    another ``fit``.

    Args:
        method: how to train, one of :mod:`methods`: ``"bag"``, ``"ct"``, ``"conventional"``,
            ``"pgd"``, ``"ensemble of jem"``, …; with settings, ``"ct(epsilon=0.2)"``; or a
            :class:`Method`.
            Its number of counterfactuals is a quarter of the rows, from 100 to 5,000, and batches
            are shuffled, unless it states them.
        model: ``"mlp"``, ``"linear"``, ``"mlp-plr"`` or ``"mlp-ple"`` (periodic or piecewise-linear
            embeddings of numbers), ``"tabm"`` (an ensemble that shares weights), ``"neurotree"``
            (smooth decision trees), or a function ``(num_features, num_classes)`` that returns a
            module for logits.
        hidden, activation: widths of the hidden layers, where there are any; ``"relu"``,
            ``"swish"`` or ``"tanh"``.
        epochs, learning_rate: passes over the data, and the step size of Adam; by default the
            method's (``"neurotree"`` has its own rate).
        batch_size: rows per update; ``"auto"`` is a hundredth of the rows, from 30 to 1000, and no
            less than a published method has; a method of your own that states one keeps it.
        early_stopping: hold out some rows, stop when the loss on them no longer falls, and keep the
            best epoch; by default unless the method has a budget of accuracy, which stops by
            itself.
        validation_fraction: share of every class to hold out for that, or to keep a budget of
            accuracy on, if it is ten rows or more.
        n_iter_no_change: epochs without a lower loss on these rows after which training stops.
        class_weight: as in scikit-learn: a number by label, or ``"balanced"``. Rows held out are
            not weighted.
        scaling: of numbers: ``"standard"`` by mean and SD; ``"robust"`` by a mean and SD that a few
            outliers cannot change, and networks then take the logarithm of outliers; ``"quantile"``
            as robust, and networks then take the rank among the training rows, as a normal score.
            With these two, a quarter of the first layer of ``"mlp"`` starts as bends in single
            columns. ``"linear"`` and your own functions get plain numbers.
        gate: keeps advice among real rows of the target class: ``"density"`` (of each class, fast),
            ``"learned"`` (a network trained on counterfactuals, for images), ``"both"`` or
            ``"none"``. Predictions do not depend on it.
        mutability, domain, special: rules by column, such as ``{"debt": "decrease"}``, all
            described in :data:`RULES`.
        relations: rules between columns, such as ``["paid <= total"]``, on top of those of the
            schema.
        schema: a dict with a table per column (the fields of :class:`Feature`), a TOML or JSON file
            with the same, or a :class:`Schema`, such as ``load_dataset("adult").schema``.
            ``mutability``, ``domain`` and ``special`` win over it.
        num_std: n_σ of Eq. 12, how far columns without a stated domain may leave the range of the
            training data. 0 keeps advice inside its bulk, from the 0.5th to the 99.5th percentile;
            ``None`` follows the method.
        unseen: a category not seen in training counts as no category, with a warning (``"warn"``)
            or without one (``"unknown"``); or it is an ``"error"``. Numbers never seen are never a
            problem.
        missing: a missing value: raise an ``"error"``, or ``"impute"`` the median or most frequent
            category.
        device, random_state: the CPU by default; a number makes ``fit`` repeatable.
        n_restarts: trainings from different seeds, as one fleet. With more than one, a fifth of the
            rows is held out to keep the most plausible model among those within one standard error
            of the best accuracy.
        warm_start: another ``fit`` goes on from the present weights, with the encoder as it is and
            the same classes.
        progress: show a bar; by default on a terminal.
        verbose: print the loss of every epoch instead.
        callbacks: called by the training loop, see :class:`Callback`; a file does not hold them.

    Attributes:
        classes_: labels, in the order of ``predict_proba``.
        n_features_in_, feature_names_in_: columns seen in ``fit``; names only if it was a frame.
        schema_, encoder_, constraints_: the columns, their encoding, and their rules in model
            space.
        model_: the trained torch module.
        method_: how it was trained, with all sizes.
        trained_: what ``fit`` trained, in one line; shown with the progress.
        generator_: of the counterfactuals in training.
        gate_: judges how much a row looks like a real one of each class; ``None`` without a gate.
        witnesses_: say how long advice lasts, see :meth:`add_witnesses`; ``None`` without any.
        history_: metrics by epoch; of several networks, those of the first.
        epochs_: of each network, how many epochs it trained for (``run``), and how many of them
            made its weights (``best``).
        tuning_: all trials, if :meth:`tune` made this classifier.
        origin_: of a model that ``ct train`` made, the column of the class, the class that people
            want, and which rows it was trained on; files keep it, another ``fit`` drops it.
            ``None`` if unknown.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300)
        >>> y = ["granted" if label else "withheld" for label in people.y]
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
        >>> clf.fit(people.frame, y).predict(people.frame[:2])
        array(['withheld', 'granted'], dtype='<U8')
        >>> told = clf.explain(people.frame[:1], target="granted")
        >>> print(told.changes()[0])  # doctest: +ELLIPSIS
        Row 0: with debt ... lower (from 46 to ...), the decision would be 'granted' (confidence ...

        Rules of columns, as a schema:

        >>> schema = {
        ...     "age": {"unit": "years", "mutability": "none"},
        ...     "debt": {
        ...         "unit": "thousand dollars",
        ...         "domain": (0, None),
        ...         "mutability": "decrease",
        ...         "step": 0.5,
        ...     },
        ... }
        >>> clf = ct.CounterfactualClassifier(schema=schema, epochs=10, random_state=0)
        >>> told = clf.fit(people.frame, y).explain(people.frame[:1], target="granted")
        >>> print(told.changes()[0])  # doctest: +ELLIPSIS
        Row 0: with debt ... thousand dollars lower (from 46 to ...
    """

    def __init__(  # noqa: PLR0913  # public
        self,
        method: str | Mapping[str, Any] | Method = defaults.METHOD,
        *,
        model: str | ModelFactory = "mlp",
        hidden: Sequence[int] = HIDDEN,
        activation: str = ACTIVATION,
        epochs: int | None = None,
        batch_size: int | str = "auto",
        learning_rate: float | None = None,
        early_stopping: bool | None = None,
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 10,
        class_weight: Mapping[Any, float] | str | None = None,
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
        n_restarts: int = 1,
        warm_start: bool = False,
        progress: bool | None = None,
        verbose: bool = False,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        # scikit-learn needs the explicit signature, and each argument stored as it came.
        for name, value in list(locals().items())[1:]:
            setattr(self, name, value)

    # ---- scikit-learn ----------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row of X ``(n,)``."""
        # First, because it checks that this is fitted.
        y_index = self._logits(X).argmax(1).numpy()
        return self.classes_[y_index]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes for rows X ``(n, k)``, in the order of ``classes_``."""
        return self._logits(X).softmax(-1).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits of rows X ``(n, k)``; for two classes their difference ``(n,)``, positive for the
        second.
        """
        logits = self._logits(X).numpy()
        if logits.shape[1] == 2:
            return logits[:, 1] - logits[:, 0]
        return logits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # scikit-learn's own checks then pass text and, if it is imputed, missing values.
        tags.input_tags.string = True
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write one file for :meth:`load`: weights and JSON, nothing executable.

        Args:
            path: of the file, such as ``"loan.safetensors"``. Folders are created, an existing file
                is replaced.
        """
        check_is_fitted(self, "model_")
        # A file holds one set of rules: those that are stated now.
        self._follow_rules()
        save_classifier(path, self)

    @classmethod
    @with_gradients
    def load(
        cls,
        path: str | Path,
        *,
        model: ModelFactory | None = None,
        method: Method | None = None,
    ) -> CounterfactualClassifier:
        """Read a classifier that :meth:`save` wrote, on the CPU; nothing in the file is executed.

        A file holds only text and numbers: pass a model or method of your own again, as to the
        constructor.

        Args:
            path: of the file.
            model, method: your own objects, if the classifier was made with some.
        """
        objects = {"model": model, "method": method}
        return load_classifier(path, cls, objects)

    @classmethod
    def from_trained(
        cls, model: nn.Module, encoder: Encoder, classes: Sequence[Any]
    ) -> CounterfactualClassifier:
        """A fitted classifier from an MLP trained elsewhere, on rows of this encoder.

        Args:
            model: maps rows of the encoder ``(n, d)`` to logits ``(n, k)``.
            encoder: fitted, see :class:`Encoder`; its schema holds the rules of the columns.
            classes: labels, in the order of the model's outputs.
        """
        # Parameters that fit, so that clone, save and repr work as if it had been trained here.
        shape = shape_of(model)
        classifier = cls(
            hidden=shape["hidden"],
            activation=shape.get("activation", "relu"),
            scaling="standard",
            gate="none",
            early_stopping=False,
            schema=encoder.schema_,
            unseen=encoder.unseen,
            missing=encoder.missing,
        )
        labels = np.array(classes, dtype=object)
        # The default n_σ: advice stays inside the range of the data.
        method = parameters.method_of(classifier.get_params(deep=False))
        classifier._adopt(encoder, labels, model.eval(), History(), (), method)
        classifier.n_features_in_ = encoder.n_features_in_
        classifier.feature_names_in_ = encoder.feature_names_in_
        return classifier

    # ---- inside ----------------------------------------------------------------------------------

    def _adopt(
        self,
        encoder: Encoder,
        classes: np.ndarray,
        model: nn.Module,
        history: History,
        epochs: Sequence[Epochs],
        method: Method,
        gate: Gate | None = None,
    ) -> None:
        """Set the fitted attributes; the only place that does."""
        self.encoder_ = encoder
        self.schema_ = encoder.schema_
        self.classes_ = classes
        # Without the constraints of model space, which ``constraints_`` holds.
        self.method_ = replace(method, constraints=None)
        self.generator_ = method.searcher
        self.num_std_ = method.num_std
        self.constraints_ = advice_constraints(encoder, method.num_std)
        self.model_ = model
        self.history_ = history
        self.epochs_ = list(epochs)
        self.gate_ = gate
        # Kept, because it learns much of the columns that every question needs.
        self._finder_of_fit = Finder(model, encoder, self.constraints_, gate)
        self.witnesses_: Witnesses | None = None
        # Whoever trains says anew which rows these were.
        self.origin_: Origin | None = None
        # Remembered as text, to notice what set_params changes later.
        self._stated = stated_rules(self.get_params(deep=False))

    def _follow_rules(self) -> None:
        """Take over rules that were changed after ``fit``."""
        params = self.get_params(deep=False)
        # Weights stay, so only what says where advice may lead is made anew.
        if self._stated != stated_rules(params):
            encoder, num_std = restate(
                params, self._stated, self.encoder_, self.method_.num_std
            )
            learned = (self.classes_, self.model_, self.history_, self.epochs_)
            origin = self.origin_
            witnesses = self.witnesses_
            method = replace(self.method_, num_std=num_std)
            self._adopt(encoder, *learned, method, self.gate_)
            self.origin_ = origin
            self.witnesses_ = witnesses

    def _seed(self) -> int:
        return seed_of(self.random_state)

    def _finder(self) -> Finder:
        finder = self._finder_of_fit
        # Somebody may have set another model or gate.
        if finder.model is self.model_ and finder.gate is self.gate_:
            return finder
        return Finder(self.model_, self.encoder_, self.constraints_, self.gate_)

    def _asked(self, rows: Any) -> pd.DataFrame:
        check_is_fitted(self, "model_")
        self._follow_rules()
        return frame_of(self, rows, empty=True)

    def _explainer(
        self, generator: str | Generator | None, confidence: float | None, max_steps: int | None
    ) -> tuple[Generator, bool]:
        return parameters.make_explainer(self.generator_, generator, confidence, max_steps)

    def _encoded(self, x: Any) -> torch.Tensor:
        check_is_fitted(self, "model_")
        return encode_rows(self.encoder_, frame_of(self, x), device_and_dtype(self.model_))

    @in_plain_torch
    def _logits(self, x: Any) -> torch.Tensor:
        encoded = self._encoded(x)
        return self._finder().logits(encoded)

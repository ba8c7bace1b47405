"""A classifier for data frames that can say what would have to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from counterfactual_training.errors import InputError
from counterfactual_training.estimator import settings
from counterfactual_training.estimator.explaining import explain_rows
from counterfactual_training.estimator.explanation import Explanation
from counterfactual_training.estimator.file import load_classifier, save_classifier
from counterfactual_training.estimator.finding import Finder
from counterfactual_training.estimator.inputs import rows, training_rows
from counterfactual_training.estimator.preparing import prepare
from counterfactual_training.estimator.presets import Scaling
from counterfactual_training.estimator.restarts import VALIDATION_SHARE, best_restart, checked_restarts
from counterfactual_training.estimator.tuning import tune_settings
from counterfactual_training.gates import Gate
from counterfactual_training.search import Generator
from counterfactual_training.tabular.encode import Encoder, Missing, Unseen
from counterfactual_training.tabular.schema import Schema
from counterfactual_training.training import History, Objective, Setting
from counterfactual_training.tuning import Goal, TuningPlan

# Training wants many quick explanations, a person one that arrives; the paper evaluated with as many.
EXPLAIN_STEPS = 50
_CHUNK = 4096

ModelFactory = Callable[[int, int], nn.Module]


class CounterfactualClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of data frames that can say what would have to change, behind scikit-learn's face.

    By default a network is trained conventionally, and a gate learns what real rows of each class look like: advice
    ends where the target's probability times this plausibility reaches the threshold. Decisions are the network's
    alone. ``preset="as_run"`` is Counterfactual Training as published, without a gate.

    >>> clf = CounterfactualClassifier(mutability={"age": "none", "debt": "decrease"}, domain={"debt": (0, None)})
    >>> clf.fit(frame, y).explain(rejected, target="granted").changes()  # doctest: +SKIP
    ["Row 3: with debt 12.4 thousand dollars lower (from 30.1 to 17.7), the decision would be 'granted' (…)."]

    All that can be said about a column, of which as much as you like; the rest comes from the data:

    >>> schema = {
    ...     "age": {"kind": "integer", "unit": "years", "domain": (18, 100), "mutability": "increase"},
    ...     "education": {"kind": "ordinal", "categories": ["none", "BSc", "MSc"], "mutability": "increase"},
    ...     "job": {"allowed": ["clerk", "nurse"], "forbidden": [("nurse", "clerk"), ("pilot", ["clerk", "nurse"])]},
    ... }
    >>> clf = CounterfactualClassifier(schema=schema)

    * ``kind``: ``"numeric"``, ``"integer"``, ``"binary"``, ``"categorical"``, ``"ordinal"`` (categories with an order)
      or ``"pixel"``.
    * ``unit``: for the sentences.
    * ``mutability``, ``domain``: as the arguments of these names; the domain of an ordinal is a pair of categories.
    * ``categories``: all of them, the lowest first. ``"increase"`` on a column with categories means up this order.
    * ``allowed``: the only values that it may be changed to. Without it, no category that training never saw.
    * ``forbidden``: changes from one category to another, or to any of a list, that are never recommended.

    Wherever ``None`` is the default, the preset decides. Three defaults suit frames of any kind rather than the paper's
    tables, and so differ from its presets: ``shuffle``, ``num_std`` and the automatic sizes. What belongs to
    counterfactuals in training has no effect where there are none, nor have weights that the objective or the generator
    does not use.

    Args:
        model: ``"mlp"``, ``"linear"``, or a function ``(num_features, num_classes)`` that makes a module for logits.
        hidden, activation: of ``"mlp"``: widths of the hidden layers; ``"relu"``, ``"swish"`` or ``"tanh"``.
        objective: ``"vanilla"`` (class loss alone), ``"full"`` (Eq. 2), ``"divergence"``, ``"adversarial"``, or an
            :class:`Objective`.
        generator: of counterfactuals in training, and then of :meth:`explain`: ``"ecco"``, ``"generic"``, ``"revise"``,
            ``"line"``, a registered name or a :class:`Generator`.
        lambda_div, lambda_reg, lambda_adv: weights of the objective (Eq. 2).
        lambda_cost, lambda_energy: weights of the search (Eq. 1).
        decision_threshold: τ, the probability of the target at which a counterfactual is done.
        max_steps: T of the searches in training; :meth:`explain` has its own.
        search_learning_rate: η of the search.
        epsilon: ε of the adversarial examples.
        epochs: passes over the data.
        batch_size: rows per update; ``"auto"`` is a hundredth of the rows, from 30 to 1000.
        num_counterfactuals: searched per epoch; ``"auto"`` is a quarter of the rows, from 100 to 5000.
        learning_rate: of Adam.
        burn_in: share of the epochs, at the start, trained conventionally.
        shuffle: new batches each epoch. The authors did not shuffle; a frame sorted by class needs it.
        early_stopping: hold out ``validation_fraction`` of every class, stop after ``n_iter_no_change`` epochs without
            a lower loss on these rows, and keep the best epoch. Where fewer than ten rows would be held out, training
            runs all its epochs on all rows.
        class_weight: as in scikit-learn: a number by label, or ``"balanced"``, which favours rare classes and costs
            accuracy. The loss of the rows held out counts them all alike.
        scaling: of numbers: ``"standard"`` by mean and SD, or ``"robust"``, by a mean and SD that a few outliers cannot
            change; ``"mlp"`` then takes what lies far out by its logarithm.
        gate: what keeps advice among real rows of the target class: ``"density"`` (of each class, quick), ``"learned"``
            (a network taught by counterfactuals, for images), ``"both"`` or ``"none"``. It decides where
            counterfactuals may end, never who is accepted: predictions are the same without it.
        preset: ``"default"``; ``"cheap_recourse"`` (shorter ways to another decision, under a budget of accuracy); the
            paper's ``"as_run"`` or ``"as_printed"``; or a :class:`Setting`, for the paper's network: all that is not
            stated here.
        mutability: by column, ``"both" | "none" | "increase" | "decrease"``, or 0, +1, −1 as in ``monotonic_cst``.
        domain: by column, ``(lower, upper)`` in its own units, ``None`` where open. Training rows and rows to be
            explained that lie outside are refused.
        schema: more about the columns, see above: a dict with a table per column, a TOML or JSON file with the same,
            or a :class:`Schema`, such as ``load_dataset("adult").schema``. ``mutability`` and ``domain`` win over it.
        num_std: n_σ of Eq. 12, how far columns without a stated domain may leave the range of the training data. At 0
            nobody is told to become what the data never saw; ``None`` is as the preset has it.
        unseen: a category never seen in training: an ``"error"``, or taken as ``"unknown"``.
        missing: a missing value: an ``"error"``, or ``"impute"`` by median or most frequent category.
        device: for torch; the CPU if not given.
        random_state: a number makes ``fit`` repeatable.
        n_restarts: trainings from so many seeds, together as one fleet, of which the best is kept. More than one holds
            a fifth of the rows out to choose on: the most plausible model among those whose accuracy there is within
            one standard error of the best.
        progress: show a bar; by default on a terminal.

    Attributes:
        tuning_: the table of all trials, where :meth:`tune` made this classifier.
        classes_: labels, in the order of ``predict_proba``.
        n_features_in_, feature_names_in_: columns seen in ``fit``; names only if it was a frame.
        schema_, encoder_, constraints_: the columns, their way to model space, and the rules there.
        model_: the trained torch module.
        generator_: of the counterfactuals in training.
        gate_: says how much a row looks like a real one of each class; ``None`` without one.
        history_: what happened, epoch by epoch.
    """

    def __init__(
        self,
        model: str | ModelFactory = "mlp",
        hidden: Sequence[int] | None = None,
        objective: str | Objective | None = None,
        generator: str | Generator | None = None,
        *,
        activation: str | None = None,
        lambda_div: float | None = None,
        lambda_reg: float | None = None,
        lambda_adv: float | None = None,
        lambda_cost: float | None = None,
        lambda_energy: float | None = None,
        decision_threshold: float | None = None,
        max_steps: int | None = None,
        search_learning_rate: float | None = None,
        epsilon: float | None = None,
        epochs: int | None = None,
        batch_size: int | str = "auto",
        num_counterfactuals: int | str = "auto",
        learning_rate: float | None = None,
        burn_in: float | None = None,
        shuffle: bool = True,
        early_stopping: bool | None = None,
        validation_fraction: float | None = None,
        n_iter_no_change: int | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        scaling: Scaling | None = None,
        gate: str | None = None,
        preset: str | Setting = "default",
        mutability: Mapping[str, object] | Sequence[object] | None = None,
        domain: Mapping[str, tuple[Any, Any]] | None = None,
        schema: Schema | Mapping[str, Any] | str | Path | None = None,
        num_std: float | None = 0.0,
        unseen: Unseen = "error",
        missing: Missing = "error",
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_restarts: int = 1,
        progress: bool | None = None,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.objective = objective
        self.generator = generator
        self.activation = activation
        self.lambda_div = lambda_div
        self.lambda_reg = lambda_reg
        self.lambda_adv = lambda_adv
        self.lambda_cost = lambda_cost
        self.lambda_energy = lambda_energy
        self.decision_threshold = decision_threshold
        self.max_steps = max_steps
        self.search_learning_rate = search_learning_rate
        self.epsilon = epsilon
        self.epochs = epochs
        self.batch_size = batch_size
        self.num_counterfactuals = num_counterfactuals
        self.learning_rate = learning_rate
        self.burn_in = burn_in
        self.shuffle = shuffle
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.scaling = scaling
        self.gate = gate
        self.preset = preset
        self.mutability = mutability
        self.domain = domain
        self.schema = schema
        self.num_std = num_std
        self.unseen = unseen
        self.missing = missing
        self.device = device
        self.random_state = random_state
        self.n_restarts = n_restarts
        self.progress = progress

    # ---- scikit-learn ----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> CounterfactualClassifier:  # noqa: N803 - scikit-learn's name
        """Train on rows X, a frame or an array, and their classes y."""
        restarts = checked_restarts(self.n_restarts)
        prepared = prepare(self.get_params(deep=False), *training_rows(self, X, y), self._seed())
        finder, setting, model = prepared.finder, prepared.setting, prepared.finder.model
        if restarts > 1:
            model, history = best_restart(prepared, restarts, self.progress)
        else:
            history = prepared.train(self.progress)
        gate = prepared.fit_gate(model)
        # Only now: a fit that fails or is interrupted leaves what was learned before.
        self._adopt(finder.encoder, prepared.classes, model.eval(), history, setting.num_std, setting.generator, gate)
        return self

    def tune(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        n_trials: int = TuningPlan.num_trials,
        objectives: str | Sequence[str] = "ip",
        at_most_lost: float | None = 1.0,
        space: Mapping[str, Any] | str | Path | None = None,
        batch: int = TuningPlan.batch,
        n_seeds: int = 1,
        validation_share: float = VALIDATION_SHARE,
        storage: str | Path | None = None,
        study: str = TuningPlan.study,
    ) -> CounterfactualClassifier:
        """A new classifier with better settings than this one, fitted to all rows; this one stays as it is.

        What is tuned belongs to counterfactual training: with ``preset="as_run"``, or an objective that is stated.
        Settings are tried in batches, each trained as one fleet, on a part of the rows, and measured on the others. The
        settings of this classifier are the first trial, so that none that is worse there comes out. The rows that a
        final test is made on must not be among X.

        Args:
            X, y: rows and classes, as for ``fit``.
            n_trials: trials altogether; a study that is found in the storage is gone on with.
            objectives: one or more of ``"ip"`` (implausibility), ``"cost"``, ``"accuracy"`` and ``"robustness"``.
            at_most_lost: points of accuracy that may be lost against the same model trained conventionally.
            space: ranges that differ from :data:`counterfactual_training.tuning.RANGES`: by parameter, a pair
                ``(low, high)``, a list of choices or ``"published"``, which leaves it as it is; or a TOML file.
            batch: trials per fleet.
            n_seeds: trainings per trial, averaged.
            validation_share: of the rows, to measure on.
            storage: a journal file, or the URL of a database, to go on with later or to share with other processes.
            study: its name there.

        Returns:
            The fitted classifier; ``tuning_`` is the table of all trials.
        """
        wanted = (objectives,) if isinstance(objectives, str) else tuple(objectives)
        best = clone(self)
        params = best.get_params(deep=False)
        seed = 0 if self.random_state is None else self._seed()
        found = tune_settings(
            prepare(params, *training_rows(best, X, y), seed),
            params,
            Goal(wanted, at_most_lost),
            TuningPlan(n_trials, batch, storage, study),
            space,
            validation_share,
            n_seeds,
        )
        best.set_params(**found.best.settings).fit(X, y)
        best.tuning_ = found.table()
        return best

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable class of each row."""
        y_index = self._logits(X).argmax(1).numpy()
        return self.classes_[y_index]

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Probabilities ``(n, k)``, in the order of ``classes_``."""
        return self._logits(X).softmax(-1).numpy()

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Logits ``(n, k)``; for two classes their difference ``(n,)``, positive for the second."""
        logits = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    def plausibility(self, X: Any) -> np.ndarray:  # noqa: N803
        """How much each row looks like a real one of each class ``(n, k)``: from 0 to 1, in the order of ``classes_``.

        A row that is low everywhere is unlike anything seen in training. ``gate="learned"`` takes columns that cannot
        change as given, and tells by the others only.
        """
        check_is_fitted(self, "model_")
        if self.gate_ is None:
            raise InputError("This classifier has no gate, which tells plausibility: fit it with gate='density'.")
        finder = self._finder()
        x = finder.encode(rows(self, X))
        return np.concatenate([self.gate_.plausibility(part).cpu().numpy() for part in x.split(_CHUNK)])

    # ---- explanations ----------------------------------------------------------------------------------------------

    def explain(
        self,
        X: Any,  # noqa: N803
        target: Any = None,
        *,
        decision_threshold: float | None = None,
        generator: str | Generator | None = None,
        max_steps: int | None = None,
        sparsify: bool = True,
    ) -> Explanation:
        """What would have to change for each row of X to get the target class, within the rules of the columns.

        Every claim holds for the rows as printed: after rounding to integers, decimals and categories.

        Args:
            X: rows like those of ``fit``.
            target: a label for all rows, or one per row; by default the most probable class that is not predicted.
            decision_threshold: probability of the target to reach, times the plausibility where there is a gate; by
                default as the preset has it.
            generator: by default the preset's, and, for rows that it does not bring there, what else there is; one that
                is named here is used alone.
            max_steps: of the search; by default :data:`EXPLAIN_STEPS`, or as the preset's generator has it.
            sparsify: take back what the target's probability can do without: whole changes, the smallest first, then
                a share of the numbers.
        """
        check_is_fitted(self, "model_")
        frame = rows(self, X)
        self._check_domain(frame)
        chosen = self._explain_generator(generator, decision_threshold, max_steps)
        alone = generator is not None
        return explain_rows(
            self._finder(), frame, self.classes_, target, chosen, fall_back=not alone, sparsify=sparsify
        )

    # ---- files -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write one file that :meth:`load` reads: weights and JSON, nothing that could run."""
        check_is_fitted(self, "model_")
        save_classifier(path, self)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: ModelFactory | None = None,
        generator: Generator | None = None,
        objective: Objective | None = None,
        preset: Setting | None = None,
    ) -> CounterfactualClassifier:
        """Read a saved classifier, on the CPU.

        What is not text or numbers cannot be saved: a model, generator, objective or preset of your own is passed
        again, as it was to the constructor.
        """
        objects = {"model": model, "generator": generator, "objective": objective, "preset": preset}
        return load_classifier(path, cls, objects)

    @classmethod
    def of_trained(
        cls, model: nn.Module, encoder: Encoder, classes: Sequence[Any], generator: Generator
    ) -> CounterfactualClassifier:
        """A fitted classifier from an MLP that was trained elsewhere, on rows that this encoder made.

        Args:
            classes: labels, in the order of the model's outputs.
            generator: of :meth:`explain`.
        """
        classifier = cls(
            preset="as_run",
            hidden=tuple(layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear))[:-1],
            schema=encoder.schema_,
            unseen=encoder.unseen,
            missing=encoder.missing,
            **settings.params_of(generator),
        )
        labels = np.array(classes, dtype=object)
        # The default n_σ: nobody is told to become what the data never saw.
        classifier._adopt(encoder, labels, model.eval(), History(), float(classifier.num_std or 0.0), generator)
        classifier.n_features_in_, classifier.feature_names_in_ = encoder.n_features_in_, encoder.feature_names_in_
        return classifier

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _adopt(
        self,
        encoder: Encoder,
        classes: np.ndarray,
        model: nn.Module,
        history: History,
        num_std: float,
        generator: Generator,
        gate: Gate | None = None,
    ) -> None:
        """Take over all that is learned; the one place where fitted attributes are set."""
        self.generator_ = generator
        self.encoder_, self.schema_, self.classes_ = encoder, encoder.schema_, classes
        self.num_std_ = num_std
        self.constraints_ = encoder.constraints(num_std, keep_sign=True)
        self.model_, self.history_, self.gate_ = model, history, gate

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _finder(self) -> Finder:
        return Finder(self.model_, self.encoder_, self.constraints_, self.gate_)

    def _logits(self, x: Any) -> torch.Tensor:
        check_is_fitted(self, "model_")
        frame = rows(self, x)
        finder = self._finder()
        return finder.logits(finder.encode(frame))

    def _explain_generator(
        self, generator: str | Generator | None, decision_threshold: float | None, max_steps: int | None
    ) -> Generator:
        if isinstance(generator, str):
            if generator == "revise" and settings.vae_of(self.generator_) is None:
                raise InputError(
                    "REVISE needs a VAE of the training data: fit with generator='revise', or pass revise(vae)."
                )
            params = {**self.get_params(deep=False), "generator": generator}
            base = settings.make_training_generator(params, vae=settings.vae_of(self.generator_))
        else:
            base = self._explainer() if generator is None else generator
        ready_made = isinstance(generator, Generator) or base.step_rule == "line"
        changes: dict[str, Any] = {} if decision_threshold is None else {"decision_threshold": decision_threshold}
        if max_steps is not None or not ready_made:
            changes["max_steps"] = EXPLAIN_STEPS if max_steps is None else max_steps
        return base.replace(**changes)

    def _explainer(self) -> Generator:
        """The preset's generator of explanations; the training's, where that was stated or the preset has none."""
        found = settings.make_whole(self.get_params(deep=False)).explainer
        if found is None or self.generator is not None:
            return self.generator_
        return found if self.decision_threshold is None else found.replace(decision_threshold=self.decision_threshold)

    def _check_domain(self, frame: pd.DataFrame) -> None:
        """Refuse factuals outside a stated domain, in the user's units."""
        stated = tuple(feature for feature in self.schema_ if feature.domain is not None)
        if stated:
            Schema(stated).check(frame[[feature.name for feature in stated]])

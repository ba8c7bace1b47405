"""How the classifier learns: from all rows, from more rows, and with better settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import clone
from torch import nn

from counterfactual_training.errors import InputError, check_count
from counterfactual_training.gates import Gate
from counterfactual_training.generators import Generator
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.estimators.fit import (
    VALIDATION_SHARE,
    PreparedFit,
    Start,
    best_restart,
    prepare,
    tune_settings,
)
from counterfactual_training.tables.estimators.inputs import row_weights, training_rows
from counterfactual_training.tables.estimators.parameters import base_setting, tuned
from counterfactual_training.torch_modes import with_gradients
from counterfactual_training.training import History
from counterfactual_training.tuning import Goal, TuningPlan


class Learns:
    """The methods ``fit``, ``partial_fit`` and ``tune`` of the classifier."""

    n_restarts: int
    n_ensemble: int
    random_state: Any
    progress: bool | None
    warm_start: bool
    verbose: bool
    classes_: np.ndarray
    encoder_: Encoder
    model_: nn.Module
    generator_: Generator
    gate_: Gate | None
    history_: History
    tuning_: Any
    get_params: Callable[..., dict[str, Any]]

    def _seed(self) -> int:
        raise NotImplementedError

    def _follow_rules(self) -> None:
        raise NotImplementedError

    def _adopt(self, *fitted: Any) -> None:
        raise NotImplementedError

    @with_gradients
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Train on rows X and their classes y.

        Args:
            X: a pandas or polars frame, or an array ``(n, m)``. Numbers, text and categories go in
                as they are.
            y: ``(n,)`` the class of each row, of at least two classes.
            sample_weight: ``(n,)`` weights of the rows in the losses. Encoder, gate and rows held
                out ignore them.
            checkpoint: a file to save to while training, and to resume from if it exists: a fit
                that was killed goes on where it was, and ends as if nothing had happened.
        """
        num_restarts, num_members = self._counts()
        going_on = self.warm_start and hasattr(self, "model_")
        if going_on and (num_restarts > 1 or num_members > 1):
            raise InputError(
                "warm_start goes on with the weights of one model; set n_ensemble=1, "
                "n_restarts=1 or warm_start=False."
            )
        prepared = replace(self._prepared(X, y, sample_weight, going_on), checkpoint=checkpoint)
        setting = prepared.setting
        model = prepared.model
        if num_restarts > 1:
            model, history = best_restart(prepared, num_restarts, self._shown)
        elif num_members > 1:
            model, history = prepared.train_ensemble(num_members, self._shown)
        else:
            history = prepared.train(self._shown)
        gate = prepared.fit_gate(model)
        if going_on:
            history = _joined(self.history_, history)
        # Only now: a fit that fails or is interrupted leaves what was learned before.
        self._adopt(
            prepared.encoder,
            prepared.classes,
            model.eval(),
            history,
            setting.num_std,
            setting.generator,
            gate,
        )
        # Adam's memory of an earlier partial_fit belongs to weights that have changed since.
        vars(self).pop("_optimizer", None)
        return self

    @with_gradients
    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train for one epoch on some of the rows; the next call goes on from there.

        Every call needs rows of all classes, and none is held out. Encoder and gate stay as the
        first call, or ``fit``, learned them, so let the first rows be many and typical.

        Args:
            X, y: some of the rows and their classes, as in ``fit``.
            classes: all labels, as scikit-learn wants them in the first call; checked against y.
            sample_weight: as in ``fit``.
        """
        first = not hasattr(self, "model_")
        if self._counts()[1] > 1:
            raise InputError(
                "partial_fit goes on with the weights of one model; set n_ensemble=1, or use fit."
            )
        prepared = self._prepared(X, y, sample_weight, not first).one_epoch()
        if classes is not None and sorted(np.unique(classes).tolist()) != sorted(
            prepared.classes.tolist()
        ):
            raise InputError(
                f"classes lists {np.unique(classes).tolist()}, but the rows of the first call hold "
                f"{prepared.classes.tolist()}; every call needs rows of all classes."
            )
        model = prepared.model
        setting = prepared.setting
        # Adam's averages of gradients go on with the weights they belong to.
        if first:
            memory = None
        else:
            memory = getattr(self, "_optimizer", None)
        optimizer = torch.optim.Adam(model.parameters(), lr=setting.config.learning_rate)
        if memory is not None:
            optimizer.load_state_dict(memory)
            # The saved state holds the old rate, too; a rate set since then wins.
            optimizer.param_groups[0]["lr"] = setting.config.learning_rate
        history = prepared.train(self._shown, optimizer)
        if first:
            gate = prepared.fit_gate(model)
        else:
            gate = self.gate_
        if not first:
            history = _joined(self.history_, history)
        self._adopt(
            prepared.encoder,
            prepared.classes,
            model.eval(),
            history,
            setting.num_std,
            setting.generator,
            gate,
        )
        self._optimizer = optimizer.state_dict()
        return self

    @with_gradients
    def tune(
        self,
        X: Any,
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
    ) -> Self:
        """Search for better settings of counterfactual training; return a new classifier fitted
        with them to all rows.

        Needs ``preset="as_run"`` or a stated objective, because the default trains without
        counterfactuals. Trials train in batches, each as one fleet, on a part of the rows and are
        measured on the rest. They train as ``fit`` does, with early stopping and callbacks. This
        classifier's settings are the first trial, so the best trial is never worse on the
        validation rows. Keep the rows of a final test out of X. ``tuning_`` of the result is the
        table of all trials.

        Args:
            X, y: rows and their classes, as in ``fit``.
            n_trials: trials in total; an existing study in the storage is resumed.
            objectives: one or more of ``"ip"`` (implausibility), ``"cost"``, ``"accuracy"`` and
                ``"robustness"``.
            at_most_lost: points of accuracy that may be lost against the same model trained
                conventionally.
            space: ranges that differ from :data:`counterfactual_training.tuning.RANGES`: by
                parameter, a pair ``(low, high)``, a list of choices or ``"published"``, which
                leaves it as it is; or a TOML file.
            batch: trials per fleet.
            n_seeds: trainings per trial, averaged.
            validation_share: share of the rows to measure on.
            storage: a journal file or the URL of a database, to resume later or to share with other
                processes.
            study: its name there.
        """
        wanted = (objectives,) if isinstance(objectives, str) else tuple(objectives)
        # This classifier stays as it is, fitted or not.
        best = clone(self)
        params = best.get_params(deep=False)
        # Not random: another call may resume the study, and has to hold out the same rows.
        if self.random_state is None:
            seed = 0
        else:
            seed = self._seed()
        prepared = prepare(params, *training_rows(best, X, y), seed)
        goal = Goal(wanted, at_most_lost)
        plan = TuningPlan(n_trials, batch, storage, study)
        found = tune_settings(prepared, params, goal, plan, space, validation_share, n_seeds)
        best.set_params(**tuned(params, prepared.setting, found.best.settings)).fit(X, y)
        best.tuning_ = found.table()
        return best

    def _counts(self) -> tuple[int, int]:
        """Restarts and members of an ensemble; at most one of them is more than 1."""
        counts = (
            check_count("n_restarts", self.n_restarts),
            check_count("n_ensemble", self.n_ensemble),
        )
        if counts[1] == 1:  # then a regime decides
            counts = counts[0], base_setting(self.get_params(deep=False)).members
        if min(counts) > 1:
            raise InputError(
                f"n_restarts={counts[0]} keeps one of several models, n_ensemble={counts[1]} "
                "keeps them all: state one."
            )
        return counts

    @property
    def _shown(self) -> bool | None:
        """Whether to show a bar."""
        if self.verbose and self.progress is None:
            return False
        return self.progress

    def _prepared(self, x: Any, y: Any, sample_weight: Any, going_on: bool) -> PreparedFit:
        """The training to do; ``going_on`` starts from the model as it is."""
        if not going_on:
            rows = training_rows(self, x, y)
            return prepare(
                self.get_params(deep=False),
                *rows,
                self._seed(),
                row_weights(sample_weight, len(rows[1])),
            )
        self._follow_rules()
        rows = training_rows(self, x, y, reset=False)
        start = Start(self.encoder_, self.classes_, self.model_, self.generator_)
        # Other draws than those of the epochs before.
        seed = (self._seed() + len(self.history_.records)) % np.iinfo(np.int32).max
        return prepare(
            self.get_params(deep=False),
            *rows,
            seed,
            row_weights(sample_weight, len(rows[1])),
            start,
        )


def _joined(before: History, after: History) -> History:
    """Both histories, with the epochs counted on."""
    if before.records:
        last = int(before.last("epoch"))
    else:
        last = 0
    records = [{**record, "epoch": last + record["epoch"]} for record in after.records]
    return History([*before.records, *records], after.stopped)

"""How the classifier learns: from all rows, from more rows, and with better settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from counterfactual_training import defaults
from counterfactual_training.errors import InputError, check_count, from_outside
from counterfactual_training.gates import Gate
from counterfactual_training.generators import Generator
from counterfactual_training.houses import find
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.tables.advice.testimony import Witnesses
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.estimators.fit import (
    VALIDATION_SHARE,
    Epochs,
    PreparedFit,
    Start,
    Trained,
    best_restart,
    prepare,
)
from counterfactual_training.tables.estimators.inputs import frame_and_labels, row_weights
from counterfactual_training.tables.estimators.parameters import method_of
from counterfactual_training.tables.estimators.witnesses import refit
from counterfactual_training.torch_modes import with_gradients
from counterfactual_training.training.method import Method
from counterfactual_training.training.run import History


class LearningMethods:
    """The methods ``fit``, ``partial_fit``, ``add_witnesses`` and ``tune`` of the classifier."""

    n_restarts: int
    model: Any
    random_state: Any
    progress: bool | None
    warm_start: bool
    verbose: bool
    classes_: np.ndarray
    encoder_: Encoder
    model_: nn.Module
    generator_: Generator
    gate_: Gate | None
    witnesses_: Witnesses | None
    history_: History
    epochs_: list[Epochs]
    method_: Method
    tuning_: Any
    trained_: str
    get_params: Callable[..., dict[str, Any]]

    # Of NestedMethod.
    _shown: Any
    _say: Callable[[int], None]

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
        num_restarts = self._counts()[0]
        going_on = self.warm_start and hasattr(self, "model_")
        if going_on and num_restarts > 1:
            raise InputError(
                "warm_start goes on with the weights there are, and n_restarts draws new ones: "
                "choose n_restarts=1 or warm_start=False."
            )
        prepared = replace(self._prepared(X, y, sample_weight, going_on), checkpoint=checkpoint)
        if not going_on:
            prepared = prepared.with_enough_rows()
        if num_restarts > 1:
            trained = best_restart(prepared, num_restarts, self._shown)
        else:
            trained = prepared.train(self._shown)
        gate = prepared.fit_gate(trained.model)
        # Only now: a fit that fails or is interrupted leaves what was learned before.
        self._take_over(prepared, trained, gate, going_on)
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
        first call, or ``fit``, learned them, so let the first rows be many and typical. Each member
        of a bag draws among the rows of a call.

        Args:
            X, y: some of the rows and their classes, as in ``fit``.
            classes: all labels, as scikit-learn wants them in the first call; checked against y.
            sample_weight: as in ``fit``.
        """
        first = not hasattr(self, "model_")
        self._counts()
        prepared = self._prepared(X, y, sample_weight, not first).one_epoch()
        if classes is not None and sorted(np.unique(classes).tolist()) != sorted(
            prepared.classes.tolist()
        ):
            raise InputError(
                f"classes lists {np.unique(classes).tolist()}, but the rows of the first call hold "
                f"{prepared.classes.tolist()}; every call needs rows of all classes."
            )
        if prepared.method.members > 1:
            networks = prepared.networks()
        else:
            networks = [prepared.model]
        optimizers = self._optimizers(networks, prepared.method.training.learning_rate)
        trained = prepared.train(self._shown, networks, optimizers)
        if first:
            gate = prepared.fit_gate(trained.model)
        else:
            gate = self.gate_
        self._take_over(prepared, trained, gate, going_on=not first)
        self._optimizer = [optimizer.state_dict() for optimizer in optimizers]
        return self

    @with_gradients
    def add_witnesses(
        self, X: Any, y: Any, num: int = 10, *, sample_weight: Any = None, seed: int = 0
    ) -> Self:
        """Fit the same networks again on bootstrap samples of the rows: witnesses of how long
        advice lasts, which ``explain`` then asks.

        All of them are trained as one fleet, for as many epochs as the classifier was up to its
        best one, and in its encoding. Predictions stay as they are; files keep the witnesses.
        Another ``fit`` or ``partial_fit`` drops them, because they are of the model as it was.

        This is a step of its own and no parameter, because a search for settings would otherwise
        fit witnesses of every model that it tries; and so that a model that is loaded can get some.

        Args:
            X, y, sample_weight: the rows, classes and weights that this was fitted to.
            num: how many, at least four. Half of them steer searches, the others report.
            seed: of the samples and of the trainings.
        """
        self.witnesses_ = refit(self, X, y, num, sample_weight, seed)
        return self

    def _optimizers(
        self, networks: Sequence[nn.Module], rate: float
    ) -> list[torch.optim.Optimizer]:
        """An Adam for each network; its averages of gradients go on with the weights they belong
        to.
        """
        optimizers = [torch.optim.Adam(network.parameters(), lr=rate) for network in networks]
        memories = getattr(self, "_optimizer", None)
        if memories is not None and len(memories) == len(optimizers):
            for optimizer, memory in zip(optimizers, memories, strict=True):
                optimizer.load_state_dict(memory)
                # The saved state holds the old rate, too; a rate set since then wins.
                optimizer.param_groups[0]["lr"] = rate
        return list(optimizers)

    @with_gradients
    def tune(  # noqa: PLR0913  # public
        self,
        X: Any,
        y: Any,
        *,
        n_trials: int = defaults.TRIALS,
        objectives: str | Sequence[str] = "ip",
        at_most_lost: float | None = 1.0,
        space: Mapping[str, Any] | str | Path | None = None,
        batch: int = defaults.TRIALS_PER_FLEET,
        n_seeds: int = defaults.TRAININGS_PER_TRIAL,
        validation_share: float = VALIDATION_SHARE,
        storage: str | Path | None = None,
        study: str = defaults.STUDY,
    ) -> Self:
        """Search for better settings of counterfactual training; return a new classifier fitted
        with them to all rows. Needs the extra ``lab``.

        Needs a method with numbers to tune, such as ``"ct_published"``: the default trains without
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
            space: ranges that differ from :data:`counterfactual_lab.tuning.RANGES`: by
                parameter, a pair ``(low, high)``, a list of choices or ``"published"``, which
                leaves it as it is; or a TOML file.
            batch: trials per fleet.
            n_seeds: trainings per trial, averaged.
            validation_share: share of the rows to measure on.
            storage: a journal file or the URL of a database, to resume later or to share with other
                processes.
            study: its name there.
        """
        # The laboratory tunes; it is found when it is needed, and says which extra is missing.
        tuning = find("counterfactual_lab.tuning")
        wanted = (objectives,) if isinstance(objectives, str) else tuple(objectives)
        # Not random: another call may resume the study, and has to hold out the same rows.
        if self.random_state is None:
            seed = 0
        else:
            seed = self._seed()
        best: Self = tuning.tune_classifier(
            self,
            (X, y),
            tuning.Goal(wanted, at_most_lost),
            tuning.TuningPlan(n_trials, batch, storage, study),
            tuning.Trainings(seed, n_seeds, validation_share),
            space,
        )
        return best

    def _take_over(
        self, prepared: PreparedFit, trained: Trained, gate: Gate | None, going_on: bool
    ) -> None:
        """Become what was trained, and say so."""
        dropped = getattr(self, "witnesses_", None)
        if dropped is not None:
            warnings.warn(
                f"The {len(dropped)} witnesses are of the model as it was, and are dropped: call "
                "add_witnesses again.",
                stacklevel=from_outside(),
            )
        history = trained.histories[0]
        epochs = trained.epochs()
        if going_on:
            history = _joined(self.history_, history)
            epochs = trained.epochs(self.epochs_)
        learned = (prepared.encoder, prepared.classes, trained.model.eval(), history, epochs)
        self._adopt(*learned, prepared.method, gate)
        self._say(len(prepared.y))

    def _counts(self) -> tuple[int, int]:
        """Restarts and members of an ensemble; at most one of them is more than 1."""
        restarts = check_count("n_restarts", self.n_restarts)
        method = method_of(self.get_params(deep=False))
        if restarts > 1 and method.members > 1:
            raise InputError(
                f"n_restarts={restarts} keeps one of several models, the method {method.name!r} "
                f"keeps all {method.members}: choose n_restarts=1, or a method of one network, "
                "such as method='conventional'."
            )
        return restarts, method.members

    def _prepared(self, x: Any, y: Any, sample_weight: Any, going_on: bool) -> PreparedFit:
        """The training to do; ``going_on`` starts from the model as it is."""
        if not going_on:
            rows = frame_and_labels(self, x, y)
            return prepare(
                self.get_params(deep=False),
                *rows,
                self._seed(),
                row_weights(sample_weight, len(rows[1])),
            )
        self._follow_rules()
        members: Any = getattr(self.model_, "members", ())
        several = isinstance(self.model_, Ensemble) and len(members) > 1
        if several and self._counts()[1] == 1 and isinstance(self.model, str):
            raise InputError(
                f"Training goes on with {len(members)} networks, and the method "
                f"{method_of(self.get_params(deep=False)).name!r} has one: fit anew."
            )
        rows = frame_and_labels(self, x, y, reset=False)
        start = Start(self.encoder_, self.classes_, self.model_, self.generator_)
        # Other draws than those of the epochs before.
        seed = (self._seed() + len(self.history_.records)) % np.iinfo(np.int32).max
        prepared = prepare(
            self.get_params(deep=False),
            *rows,
            seed,
            row_weights(sample_weight, len(rows[1])),
            start,
        )
        # A bag that had too few rows to draw from is one network, and stays so.
        alone = not isinstance(self.model_, Ensemble) and self.method_.members == 1
        if alone and self.method_.name == prepared.method.name:
            return prepared.of_one_network()
        return prepared


def _joined(before: History, after: History) -> History:
    """Both histories, with the epochs counted on."""
    if before.records:
        last = int(before.last("epoch"))
    else:
        last = 0
    records = [{**record, "epoch": last + record["epoch"]} for record in after.records]
    return History([*before.records, *records], after.stopped, after.diverged, after.usable)

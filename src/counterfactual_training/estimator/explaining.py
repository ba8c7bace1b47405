"""From rows and a wished-for class to an :class:`Explanation`, for any model that comes with an encoder and rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.errors import ModelError
from counterfactual_training.estimator.explanation import Explanation
from counterfactual_training.estimator.finding import Finder
from counterfactual_training.estimator.inputs import target_classes
from counterfactual_training.estimator.obstacles import find_obstacles
from counterfactual_training.search import Generator, Status


def explain_rows(
    finder: Finder,
    frame: pd.DataFrame,
    classes: np.ndarray,
    target: Any,
    generator: Generator,
    *,
    fall_back: bool = True,
    sparsify: bool = True,
) -> Explanation:
    """What would have to change for each row of a frame to get the target class.

    Args:
        finder: model, encoder and constraints.
        frame: the factuals, in the user's units.
        classes: labels ``(k,)`` in the order of the model's logits.
        target: a label for all rows or one per row; ``None`` is the most probable class that is not predicted.
        generator: of the search, with the threshold to reach.
        fall_back: try rows that the generator does not bring there with nothing but class loss and distance.
        sparsify: take back what the target's probability can do without.
    """
    before = finder.logits(finder.encode(frame)).softmax(-1).numpy()
    y_target = target_classes(target, classes, before)
    try:
        found = finder.find(frame, y_target, generator, fall_back, sparsify)
    except ModelError:
        finder.refuse_far(frame)
        raise
    threshold = float(generator.decision_threshold)
    missed = finder.implausible(found, y_target, generator)
    hindered = find_obstacles(finder, found, y_target, (found.status == int(Status.EXHAUSTED)) & ~missed)
    status = np.where(hindered.stuck, int(Status.INFEASIBLE), found.status)
    status = np.where(missed, int(Status.IMPLAUSIBLE), status)
    names = np.array([Status(code).name.lower() for code in sorted(Status)], dtype=object)
    return Explanation(
        original=frame,
        frame=found.frame,
        changed=pd.DataFrame(found.distance > 0, index=frame.index, columns=list(frame.columns)),
        target=classes[y_target],
        decision=classes[before.argmax(1)],
        prediction=classes[found.probability.argmax(1)],
        confidence=found.probability[np.arange(len(frame)), y_target],
        plausibility=found.plausibility,
        status=names[status],
        converged=found.confidence >= threshold,
        cost=found.distance.sum(1),
        num_steps=found.num_steps,
        decision_threshold=threshold,
        distance=found.distance,
        obstacles=hindered.obstacles,
        encoder=finder.encoder,
    )

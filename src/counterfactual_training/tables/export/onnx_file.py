"""A classifier as one ONNX file: logits, probabilities, plausibility and gradient, with the rules
as JSON beside.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.errors import InputError, ModelError, from_outside, need_extra
from counterfactual_training.generators import evaluating
from counterfactual_training.persistence import atomic_write
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.export.description import KEY, describe_classifier
from counterfactual_training.tables.export.traceable import Outputs, RecourseGraph

# Packages of the extra, all of them needed: one makes the graph, one writes it, one checks it.
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Rows that the graph is checked on, and the largest difference, relative to the largest value of an
# output.
_CHECKED = 32
_DIFFERENCE = 1e-3


def export_onnx(
    classifier: CounterfactualClassifier,
    path: str | Path,
    *,
    wanted: Any = None,
    source: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write a fitted classifier as an ONNX file, for services without torch.

    The graph takes encoded rows ``x`` ``(n, d)`` in float32, the index of a class for each,
    ``target`` ``(n,)``, and how much to compute, ``depth`` ``()``, both in int64. It returns
    :class:`Outputs`, the gradient that a search for advice follows among them, as far as the depth
    reaches (:data:`lazy.LEVELS`). The metadata holds, as JSON under the key
    ``counterfactual_training``, how rows are encoded and where advice may lead.
    ``examples/onnx_service.py`` predicts and searches with this file, numpy and onnxruntime alone.

    The file is written only if onnxruntime computes what torch does. Relations between columns
    cannot be expressed: a model that has some is exported with a warning, and its rules name them.

    Args:
        classifier: fitted.
        path: of the file, such as ``"loan.onnx"``.
        wanted: the class that people want, noted for the service; ``None`` if that is not known.
        source: the model file that the classifier was loaded from, noted too: its ``name`` and
            ``sha256``.

    Returns:
        What the metadata hold.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300)
        >>> stated = {"mutability": {"age": "none"}, "gate": "none", "epochs": 5}
        >>> clf = ct.CounterfactualClassifier(model="linear", **stated)
        >>> clf = clf.fit(people.frame, people.y)
        >>> with TemporaryDirectory() as folder:
        ...     described = ct.export_onnx(clf, f"{folder}/loan.onnx", wanted=1)
        >>> [(column["name"], column["move"]) for column in described["columns"]]
        [('age', 'none'), ('debt', 'both')]
    """
    for package in _PACKAGES:
        need_extra(package, "onnx")
    _check(classifier, path)
    classifier._follow_rules()  # the file holds the rules that are stated now
    described = describe_classifier(classifier, wanted) | {
        "source": None if source is None else dict(source)
    }
    if described["relations"]:
        relations = "; ".join(described["relations"])
        warnings.warn(
            f"Relations between columns are not exported ({relations}): the file predicts, but "
            "advice found with it may break them.",
            stacklevel=from_outside(),
        )
    atomic_write(path, _file(classifier, described))
    return described


def _check(classifier: Any, path: str | Path) -> None:
    if not isinstance(classifier, CounterfactualClassifier):
        raise InputError(
            f"Only a CounterfactualClassifier can be exported, got {type(classifier).__name__}."
        )
    check_is_fitted(classifier, "model_")
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{str(path)!r} is a folder; name a file, such as model.onnx.")
    if file.parent.exists() and not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InputError(f"{str(path)!r} cannot be written to.")


def _file(classifier: CounterfactualClassifier, described: Mapping[str, Any]) -> bytes:
    """The content of the file, checked."""
    import onnx

    from counterfactual_training.tables.export.trace import to_onnx

    num_features = len(classifier.encoder_.names_)
    model = to_onnx(RecourseGraph(classifier.model_, classifier.gate_), num_features)
    onnx.helper.set_model_props(model, {KEY: json.dumps(described, allow_nan=False)})
    model.producer_name = "counterfactual-training"
    model.producer_version = described["made_by"]
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    graph_differences(content, classifier, _some_rows(num_features))
    return content


def graph_differences(
    content: bytes, classifier: CounterfactualClassifier, x: Tensor
) -> dict[str, float]:
    """The largest difference between graph and torch for rows x ``(n, d)``, by output; raises if
    one is too large.

    Relative to the largest value of the output, because torch and onnxruntime add numbers up in
    different orders.
    """
    import onnxruntime

    from counterfactual_training.tables.export.lazy import LEVELS

    target = torch.arange(len(x)) % len(classifier.classes_)
    feed = {"x": x.numpy(), "target": target.numpy(), "depth": np.array(len(LEVELS) - 1)}
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        outputs = session.run(list(Outputs._fields), feed)
    except Exception as error:  # its errors have no class of their own in common
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"onnxruntime cannot run the exported graph: {reason} The file is not written."
        ) from error
    wanted = by_autograd(classifier, x, target)
    pairs = zip(Outputs._fields, outputs, wanted, strict=True)
    differences = {name: _difference(a, b.numpy()) for name, a, b in pairs}
    worst = max(differences, key=lambda name: differences[name])
    if differences[worst] > _DIFFERENCE:
        raise ModelError(
            f"The exported graph does not compute what torch does: {worst} differs by "
            f"{differences[worst]:.2g} of its "
            "largest value. The file is not written. Does the network draw random numbers, or "
            "depend on other rows?"
        )
    return differences


def by_autograd(classifier: CounterfactualClassifier, x: Tensor, target: Tensor) -> Outputs:
    """What a graph returns, by the classifier's own modules, the searched one among them, and
    autograd.
    """
    finder = classifier._finder()
    leaf = x.to(next(classifier.model_.parameters())).requires_grad_()
    searched, alone = (
        _class_loss(module, leaf, target) for module in (finder.searched, finder.model)
    )
    logits = finder.logits(leaf.detach())
    probability = logits.softmax(-1)
    if finder.gate is None:
        plausibility = torch.ones_like(logits)
    else:
        plausibility = finder.plausibility(leaf.detach())
    values = (
        logits,
        probability,
        plausibility,
        probability * plausibility,
        *searched,
        alone[1],
    )
    return Outputs(*(value.cpu().float() for value in values))


def _class_loss(module: nn.Module, leaf: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The class loss ``(n,)`` of a classifier, and its gradient ``(n, d)``."""
    with evaluating(module):
        loss = functional.cross_entropy(module(leaf), target.to(leaf.device), reduction="none")
    return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]


def _difference(outputs: np.ndarray, expected: np.ndarray) -> float:
    difference = float(
        np.abs(outputs - expected).max() / max(1.0, float(np.abs(expected).max()))
    )
    # NaN is neither more nor less than any number, so it would not count as the worst.
    if np.isnan(difference):
        return float("inf")
    return difference


def _some_rows(num_features: int) -> Tensor:
    """Rows ``(n, d)`` like encoded ones: around 0, about 1 apart."""
    return torch.randn(
        _CHECKED, num_features, generator=torch.Generator().manual_seed(0), dtype=torch.float32
    )

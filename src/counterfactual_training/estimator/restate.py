"""Rules of the columns that were changed after ``fit``: followed if that needs no training, refused otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from counterfactual_training.errors import InputError
from counterfactual_training.estimator import parameters
from counterfactual_training.estimator.inputs import by_column
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.schema import Schema
from counterfactual_training.tabular.schema_file import read_features

# Rules of advice alone, and rules that the encoding was learned with.
_OF_ADVICE, _LEARNED = ("mutability", "domain", "num_std"), ("schema", "special", "relations")


def stated_rules(params: Mapping[str, Any]) -> dict[str, str]:
    """The rules among a classifier's parameters, in a form that can be compared later."""
    return {name: repr(_plain(params[name])) for name in (*_OF_ADVICE, *_LEARNED)}


def restate(params: Mapping[str, Any], before: Mapping[str, str], encoder: Encoder) -> tuple[Encoder, float]:
    """The encoder under the rules as they are now, and n_σ.

    Args:
        before: the rules that the encoder has, as :func:`stated_rules` told them.
    """
    now = stated_rules(params)
    learned = [name for name in _LEARNED if now[name] != before[name]]
    if learned:
        raise InputError(
            f"{' and '.join(learned)} changed after fit, which encoded the columns by the old one: fit again. Rules of "
            "one question, such as vary=, lock= and domain=, are arguments of explain."
        )
    stated, names = _stated_fields(params["schema"]), encoder.schema_.names
    rules = {name: by_column(params[name], names) for name in ("mutability", "domain")}
    # An order that was stated once need not be stated again.
    levels = {feature.name: {"categories": feature.categories} for feature in encoder.schema_}
    ordered = {name: levels[name] for name, fields in stated.items() if "categories" in fields}
    features = tuple(_without_rules(feature, stated.get(feature.name, {})) for feature in encoder.schema_)
    schema = Schema(features, encoder.schema_.relations)
    schema = schema.override(ordered, mutability=rules["mutability"], domain=rules["domain"])
    for feature in schema:
        if feature.kind == "pixel" and feature.domain != encoder.schema_[feature.name].domain:
            raise InputError(f"The domain of the pixel {feature.name!r} scales it, so fit again to change it.")
    return encoder.with_schema(schema), parameters.base_setting(params).num_std


def _without_rules(feature: Feature, stated: Mapping[str, Any]) -> Feature:
    """The feature as the schema states it, without the classifier's own mutability and domain."""
    domain = feature.domain if feature.kind == "pixel" else stated.get("domain")
    return replace(feature, mutability=stated.get("mutability", "both"), domain=domain)


def _stated_fields(schema: Any) -> Mapping[str, Mapping[str, Any]]:
    if isinstance(schema, Schema):
        return {feature.name: {"mutability": feature.mutability, "domain": feature.domain} for feature in schema}
    return read_features(schema) if isinstance(schema, (str, Path)) else schema or {}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):  # its repr is abbreviated
        return value.tolist()
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value

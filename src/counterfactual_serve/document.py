"""The API described for programs (OpenAPI 3.1), made of the very fields that requests are checked
by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import counterfactual_training
from counterfactual_serve.reading import Fields
from counterfactual_serve.served import API
from counterfactual_training.rules import meaning, stated_in

_GETS = {
    "model": "The model, the one to compare it with, the rows, and the limits of requests.",
    "schema": "The columns: kinds, units, categories, and how they may change; relations; what "
    "rules mean.",
    "card": "The model card: what it is, data, rules, measures with intervals, limits, versions.",
}
_POSTS = {
    "rows": "People, filtered and sorted, page by page, with decision and confidence. Needs "
    "--data.",
    "predict": "Decision, probabilities and plausibility of rows.",
    "explain": "Plans for rows: what would have to change for another decision, under the rules of "
    "the question.",
    "map": "Decisions in a plane through one row, people in it, and the way of each plan.",
    "audit": "Burden of recourse by group, proxies, and how long advice stays valid. Needs --data "
    "with classes.",
    "receipt": "A receipt for a plan, to be verified later.",
    "verify": "Checks of a receipt, one by one.",
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "field": {"type": ["string", "null"]},
            },
            "required": ["code", "message", "field"],
        }
    },
    "required": ["error"],
}
_STATUS = {
    "400": "the request does not fit; the message says what was expected",
    "401": "a token is needed",
    "403": "another host or page asks",
    "404": "not there, such as rows without --data",
    "405": "another method is needed; the header Allow names it",
    "408": "the body did not arrive in time",
    "409": "another audit is running",
    "413": "the body is too large",
    "415": "the body is not JSON",
    "503": "too many questions are waiting",
}


def make_document(bodies: Mapping[str, Fields]) -> dict[str, Any]:
    """The document of ``/api/openapi.json``."""
    paths: dict[str, Any] = {
        f"/api/v{API}/{name}": {
            "get": {"summary": summary, "operationId": name, "responses": _responses()}
        }
        for name, summary in _GETS.items()
    }
    for name, summary in _POSTS.items():
        body = {
            "required": True,
            "content": {"application/json": {"schema": _schema(bodies[name])}},
        }
        paths[f"/api/v{API}/{name}"] = {
            "post": {
                "summary": summary,
                "operationId": name,
                "requestBody": body,
                "responses": _responses(),
            }
        }
    paths["/health"] = {
        "get": {
            "summary": "Whether the server lives.",
            "operationId": "health",
            "responses": _responses(),
        }
    }
    info = {
        "title": "counterfactual-training",
        "version": f"{API}",
        "x-package": counterfactual_training.__version__,
    }
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def rule_meanings(fields: Fields) -> dict[str, str]:
    """What each rule of a question means, by the field that states it."""
    return {name: meaning(name) for name in fields.kinds if name in stated_in("question")}


def _schema(body: Fields) -> dict[str, Any]:
    """The schema of a request, with its rules described."""
    schema = body.schema()
    # A receipt holds the question as a part; columns of rows, which may be called like a rule, are
    # none.
    question = body.kinds.get("question", body)
    if isinstance(question, Fields):
        if question is body:
            properties = schema["properties"]
        else:
            properties = schema["properties"]["question"]["properties"]
        for field, meaning in rule_meanings(question).items():
            properties[field]["description"] = meaning
    return schema


def _responses() -> dict[str, Any]:
    refusals = {
        status: {
            "description": description,
            "content": {"application/json": {"schema": _ERROR}},
        }
        for status, description in _STATUS.items()
    }
    return {
        "200": {
            "description": "answered",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **refusals,
    }

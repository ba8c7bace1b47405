"""The web application: a page, and the API that it uses. Made by :func:`make_app`, run by :mod:`server` or any ASGI
server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from counterfactual_training.advice.words import plain_value
from counterfactual_training.errors import CounterfactualTrainingError, InputError
from counterfactual_training.serve import audit_tasks
from counterfactual_training.serve.answers import predictions_of
from counterfactual_training.serve.atlas import Atlas
from counterfactual_training.serve.desk import Desk
from counterfactual_training.serve.document import make_document, rule_meanings
from counterfactual_training.serve.guard import Access, Guard, Receive, Scope, Send, check_json
from counterfactual_training.serve.metrics import Metrics, log
from counterfactual_training.serve.page import make_page
from counterfactual_training.serve.people import People
from counterfactual_training.serve.questions import Limits, Question, frame_of, make_bodies, question_of
from counterfactual_training.serve.reading import RefusedError, parse
from counterfactual_training.serve.receipt import make_receipt, verify_receipt
from counterfactual_training.serve.served import API, Served
from counterfactual_training.serve.worker import Worker, explain

# Seconds in which a body has to arrive: a client that sends a byte now and then is not waited for.
_BODY_SECONDS = 15.0
# Seconds for rows that need no search: the least that `explain` takes.
_NO_TIME = 1e-9
_BY_DEFAULT = Limits()
_ANYBODY = Access()

T = TypeVar("T")
Handler = Callable[[Request, dict[str, Any]], Awaitable[Any]]


def make_app(
    served: Served,
    *,
    access: Access = _ANYBODY,
    limits: Limits = _BY_DEFAULT,
    workers: int = 2,
    key: bytes | None = None,
    together: bool = True,
) -> Guard:
    """An ASGI application.

    Args:
        served: models and rows.
        access: names of the server, and the token to ask for.
        limits: of requests.
        workers: processes that search.
        key: signs receipts.
        together: search questions that arrive together in one batch.
    """
    return _Application(served, access, limits, workers, key, together).app


class _Application:
    """The handlers; each takes a request and its checked body, and returns a document."""

    def __init__(
        self, served: Served, access: Access, limits: Limits, workers: int, key: bytes | None, together: bool
    ) -> None:
        self.served, self.limits, self.key = served, limits, key
        self.metrics = Metrics()
        searchers = [Worker(served) for _ in range(workers)]
        self.desk = Desk(searchers, Worker(served), self.metrics, limits.queue, together)
        self.people, self.atlas = People(served), Atlas(served)
        self.bodies = make_bodies(served, limits)
        self._card: Any = None
        posts: dict[str, Handler] = {
            "rows": self._rows, "predict": self._predict, "explain": self._explain, "map": self._map,
            "audit": self._audit, "receipt": self._receipt, "verify": self._verify,
        }  # fmt: skip
        gets: dict[str, Handler] = {
            "model": self._model, "schema": self._schema, "card": self._make_card, "openapi.json": self._document,
        }  # fmt: skip
        routes = [Route(f"{base}/{name}", self._handling(name, post, body=True), methods=["POST"])
                  for base in ("/api", f"/api/v{API}") for name, post in posts.items()]  # fmt: skip
        routes += [Route(f"{base}/{name}", self._handling(name, get), methods=["GET"])
                   for base in ("/api", f"/api/v{API}") for name, get in gets.items()]  # fmt: skip
        routes += [Route("/health", self._handling("health", self._health), methods=["GET"])]
        routes += [Route("/metrics", self._numbers, methods=["GET"]), *make_page(served)]
        names = {route.path for route in routes}
        inner = Starlette(
            routes=routes,
            lifespan=self._life,
            exception_handlers={HTTPException: _http_error, Exception: _fault},
        )
        inner.router.redirect_slashes = False  # /health/ is simply not there
        self.app = Guard(
            inner,
            access,
            self.metrics,
            _refuse,
            lambda path: path if path in names else "other",
            self.desk.stop_soon,
        )

    @contextlib.asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        await self.desk.start()
        if self.served.rows is not None:  # before the first client waits for it
            await asyncio.to_thread(lambda: self.served.decided)
        log("ready", model=self.served.model.sha256, api=API)
        try:
            yield
        finally:
            await self.desk.stop()
            log("stopped")

    def _handling(self, name: str, handler: Handler, body: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """A handler as an endpoint: reads the body, turns errors into answers."""

        async def endpoint(request: Request) -> Response:
            try:
                read = self.bodies[name].read(parse(await self._body(request))) if body else {}
                request.scope["facts"] = {"rows": len(read["rows"])} if isinstance(read.get("rows"), list) else {}
                return _json(await handler(request, read))
            except InputError as error:
                return _error(error)
            except ClientDisconnect:
                return Response(status_code=499)
            except CounterfactualTrainingError:
                log("fault", level=40, id=request.scope.get("request_id"))
                return _error(RefusedError("This failed; it is a fault of the server.", code="failed", status=500))

        return endpoint

    async def _body(self, request: Request) -> bytes:
        """The body, unless it is too large or takes too long."""
        check_json(request.scope)
        most = self.limits.body
        too_large = RefusedError(f"The body is larger than {most:,} bytes.", code="too_large", status=413)
        stated = request.headers.get("content-length", "")
        if stated.isascii() and stated.isdecimal() and int(stated) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            raise RefusedError("The body did not arrive in time.", code="slow", status=408) from None
        return b"".join(parts)

    # ---- handlers --------------------------------------------------------------------------------------------------

    async def _health(self, request: Request, body: dict[str, Any]) -> Any:
        return {"status": "ok", "api": API, "model": self.served.model.sha256}

    async def _model(self, request: Request, body: dict[str, Any]) -> Any:
        return {**self.served.document(), "limits": self.limits.document()}

    async def _schema(self, request: Request, body: dict[str, Any]) -> Any:
        return {**self.served.columns(), "rules": rule_meanings(self.bodies["explain"])}

    async def _document(self, request: Request, body: dict[str, Any]) -> Any:
        return make_document(self.bodies)

    async def _rows(self, request: Request, body: dict[str, Any]) -> Any:
        self._need_rows()
        return await asyncio.to_thread(self.people.page, body)

    async def _predict(self, request: Request, body: dict[str, Any]) -> Any:
        model = self.served.named(body["model"])
        frame, notes = frame_of(body["rows"], model.classifier)
        found = await asyncio.to_thread(predictions_of, model, frame)
        return {"predictions": [{**entry, "notes": said} for entry, said in zip(found, notes, strict=True)]}

    async def _explain(self, request: Request, body: dict[str, Any]) -> Any:
        started, model = time.perf_counter(), self.served.named(body["model"])
        question = question_of(body, model)
        if not body["rows"]:
            return {"complete": True, "model": model.sha256, "seconds": 0.0, "batch": 0, "answers": []}
        frame, notes = frame_of(body["rows"], model.classifier)
        target = plain_value(model.wanted) if body["target"] is None else body["target"]
        now = await asyncio.to_thread(predictions_of, model, frame)
        there = np.array([entry["decision"] == target for entry in now])
        asked = self._plans(question, frame, target, there, body["seconds"])
        answers, complete, batch = await _unless_gone(request, asked)
        await asyncio.to_thread(self._judge, body["model"], answers)
        for answer, own, said in zip(answers, now, notes, strict=True):
            # As decided now, also for rows that were not searched.
            answer |= {"decision": own["decision"], "confidence": own["confidence"]}
            answer["notes"] = [*answer["notes"], *said]
        request.scope["facts"] |= {"batch": batch, "complete": complete}
        seconds = round(time.perf_counter() - started, 3)
        return {"complete": complete, "model": model.sha256, "seconds": seconds, "batch": batch, "answers": answers}

    async def _plans(
        self,
        question: Question,
        frame: pd.DataFrame,
        target: Any,
        there: np.ndarray,
        seconds: float,
    ) -> tuple[list[dict[str, Any]], bool, int]:
        """An answer per row, as :meth:`Desk.explain` gives them.

        Rows that are ``there`` already wait for no worker.
        """
        at_once: list[dict[str, Any]] = []
        searched: list[dict[str, Any]] = []
        complete = True
        batch = 0
        if there.any():
            rows = frame[there]
            targets = [target] * len(rows)
            work = asyncio.to_thread(explain, self.served, question, rows, targets, _NO_TIME)
            at_once, _ = await work
        if not there.all():
            rows = frame[~there]
            targets = [target] * len(rows)
            searched, complete, batch = await self.desk.explain(question, rows, targets, seconds)
        answers = [(at_once if is_there else searched).pop(0) for is_there in there.tolist()]
        return [{**answer, "row": i} for i, answer in enumerate(answers)], complete, batch

    def _judge(self, which: str, answers: list[dict[str, Any]]) -> None:
        """Add how usual each plan is among real rows."""
        for answer in answers:
            for plan in answer["plans"]:
                seen = plan["plausibility"]
                plan["percentile"] = None if seen is None else self.served.percentile(which, answer["target"], seen)

    async def _map(self, request: Request, body: dict[str, Any]) -> Any:
        model = self.served.named(body["model"])
        return await asyncio.to_thread(
            self.atlas.draw, model, body["row"], body["columns"], body["plans"], body["size"]
        )  # fmt: skip

    async def _audit(self, request: Request, body: dict[str, Any]) -> Any:
        self._need_rows()
        work = self.desk.audit(
            audit_tasks.audit, body["groups"], body["people"], body["model"], body["target"],
            seconds=self.limits.audit_seconds,
        )  # fmt: skip
        return await _unless_gone(request, work)

    async def _make_card(self, request: Request, body: dict[str, Any]) -> Any:
        # It depends on model and rows alone, so one is enough.
        if self._card is None:
            work = self.desk.audit(audit_tasks.card, seconds=self.limits.audit_seconds, wait=True)
            self._card = await _unless_gone(request, work)
        return self._card

    async def _receipt(self, request: Request, body: dict[str, Any]) -> Any:
        model = self.served.named(body["model"])
        receipt = await asyncio.to_thread(
            make_receipt, model, body["row"], body["plan"], body["question"], self.key
        )  # fmt: skip
        return {"receipt": receipt}

    async def _verify(self, request: Request, body: dict[str, Any]) -> Any:
        receipt = body["receipt"]
        # A receipt of the model to compare with is checked by that model.
        stated = receipt.get("model")
        against = self.served.against
        other = against is not None and isinstance(stated, dict) and stated.get("sha256") == against.sha256
        model = against if against is not None and other else self.served.model
        checks = await asyncio.to_thread(verify_receipt, receipt, model, self.key)
        return {"valid": all(check.passed for check in checks), "checks": [vars(check) for check in checks]}

    async def _numbers(self, request: Request) -> Response:
        return Response(self.metrics.text(self.desk.waiting), media_type="text/plain; version=0.0.4")

    def _need_rows(self) -> None:
        if self.served.rows is None:
            raise RefusedError("There are no rows: start the server with --data.", code="no_data", status=404)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to; it is cancelled if the client hangs up, because nobody would read it."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        # So that nobody misses the error of a task that was cancelled too late.
        await asyncio.gather(working, leaving, return_exceptions=True)


# ---- answers ---------------------------------------------------------------------------------------------------------


def _json(document: Any, status: int = 200) -> Response:
    # ASCII, so that no page, proxy or terminal can read it in another encoding.
    return Response(json.dumps(document, allow_nan=False), status, media_type="application/json")


def _error(error: InputError) -> Response:
    refused = error if isinstance(error, RefusedError) else RefusedError(str(error))
    response = _json({"error": {"code": refused.code, "message": str(refused), "field": refused.field}}, refused.status)
    if refused.code == "busy":
        response.headers["retry-after"] = "5"
    if refused.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def _refuse(refused: RefusedError, scope: Scope, receive: Receive, send: Send) -> None:
    await _error(refused)(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        # Of the router, in no order.
        headers = getattr(error, "headers", None) or {}
        methods = ", ".join(sorted(headers.get("Allow", "").split(", ")))
        refused = RefusedError(f"This path takes {methods}.", code="method", status=status)
        response = _error(refused)
        response.headers["allow"] = methods
        return response
    if status == 404:
        said = "There is nothing here; the API is described in /api/openapi.json."
        return _error(RefusedError(said, code="not_found", status=status))
    return _error(RefusedError("This request cannot be answered.", status=status))


async def _fault(request: Request, error: Exception) -> Response:
    """Whatever nobody foresaw. The log names its type only: messages may quote what people sent."""
    log("fault", level=40, id=request.scope.get("request_id"), error=type(error).__name__)
    return _error(RefusedError("This failed; it is a fault of the server.", code="failed", status=500))

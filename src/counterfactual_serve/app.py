"""The web application: a page, and the API that it uses. Made by :func:`make_app`, run by
:mod:`server` or any ASGI server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from counterfactual_serve import tasks
from counterfactual_serve.answers import predictions_of
from counterfactual_serve.atlas import Atlas
from counterfactual_serve.desk import Desk
from counterfactual_serve.document import make_document, rule_meanings
from counterfactual_serve.guard import Access, Guard, Receive, Scope, Send, check_json
from counterfactual_serve.metrics import Metrics, log
from counterfactual_serve.page import make_page
from counterfactual_serve.people import People
from counterfactual_serve.questions import Limits, make_bodies, question_of, request_frame
from counterfactual_serve.reading import RefusedError, parse
from counterfactual_serve.receipt import make_receipt, verify_receipt
from counterfactual_serve.served import API, Served
from counterfactual_serve.worker import make_workers
from counterfactual_training.errors import CounterfactualTrainingError, InputError

# Seconds in which a body has to arrive: a client that sends a byte now and then must not hold a
# connection open.
_BODY_SECONDS = 15.0
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
) -> Guard:
    """An ASGI application; to be made before there are threads.

    Args:
        served: models and rows.
        access: names of the server, and the token to ask for.
        limits: of requests.
        workers: processes that search.
        key: signs receipts.
    """
    return _Application(served, access, limits, workers, key).app


class _Application:
    """The handlers; each takes a request and its checked body, and returns a document."""

    def __init__(
        self, served: Served, access: Access, limits: Limits, workers: int, key: bytes | None
    ) -> None:
        self.served = served
        self.limits = limits
        self.key = key
        self.metrics = Metrics()
        served.prepare()
        *searchers, auditor = make_workers(served, workers + 1)
        self.desk = Desk(searchers, auditor, self.metrics, limits)
        self.people = People(served)
        self.atlas = Atlas(served)
        self.bodies = make_bodies(served, limits)
        self._card: Any = None
        posts: dict[str, Handler] = {
            "rows": self._rows,
            "predict": self._predict,
            "explain": self._explain,
            "map": self._map,
            "audit": self._audit,
            "receipt": self._receipt,
            "verify": self._verify,
        }
        gets: dict[str, Handler] = {
            "model": self._model,
            "schema": self._schema,
            "card": self._make_card,
            "openapi.json": self._document,
        }
        routes = [
            Route(f"{base}/{name}", self._handling(name, post, body=True), methods=["POST"])
            for base in ("/api", f"/api/v{API}")
            for name, post in posts.items()
        ]
        routes += [
            Route(f"{base}/{name}", self._handling(name, get), methods=["GET"])
            for base in ("/api", f"/api/v{API}")
            for name, get in gets.items()
        ]
        routes += [Route("/health", self._handling("health", self._health), methods=["GET"])]
        routes += [Route("/metrics", self._numbers, methods=["GET"]), *make_page(served)]
        names = {route.path for route in routes}
        inner = Starlette(
            routes=routes,
            lifespan=self._life,
            exception_handlers={HTTPException: _http_error, Exception: _fault},
        )
        inner.router.redirect_slashes = False  # /health/ is not found
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
        log("ready", model=self.served.model.sha256, api=API)
        try:
            yield
        finally:
            await self.desk.stop()
            log("stopped")

    def _handling(
        self, name: str, handler: Handler, body: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler as an endpoint: reads the body, turns errors into answers."""

        async def endpoint(request: Request) -> Response:
            try:
                if body:
                    read = self.bodies[name].read(parse(await self._body(request)))
                else:
                    read = {}
                if isinstance(read.get("rows"), list):
                    request.scope["facts"] = {"rows": len(read["rows"])}
                else:
                    request.scope["facts"] = {}
                return _json(await handler(request, read))
            except InputError as error:
                return _error(error)
            except ClientDisconnect:
                return Response(status_code=499)
            except CounterfactualTrainingError:
                log("fault", level=40, id=request.scope.get("request_id"))
                return _error(
                    RefusedError(
                        "This failed; it is a fault of the server.", code="failed", status=500
                    )
                )

        return endpoint

    async def _body(self, request: Request) -> bytes:
        """The body, unless it is too large or takes too long."""
        check_json(request.scope)
        most = self.limits.body
        too_large = RefusedError(
            f"The body is larger than {most:,} bytes.", code="too_large", status=413
        )
        stated = request.headers.get("content-length", "")
        if stated.isascii() and stated.isdecimal() and int(stated) > most:
            raise too_large
        parts = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            raise RefusedError(
                "The body did not arrive in time.", code="slow", status=408
            ) from None
        return b"".join(parts)

    # ---- handlers --------------------------------------------------------------------------------

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
        frame, notes = request_frame(body["rows"], model.classifier)
        predictions = await asyncio.to_thread(predictions_of, model, frame)
        return {
            "predictions": [
                {**prediction, "notes": row_notes}
                for prediction, row_notes in zip(predictions, notes, strict=True)
            ]
        }

    async def _explain(self, request: Request, body: dict[str, Any]) -> Any:
        started = time.perf_counter()
        model = self.served.named(body["model"])
        question = question_of(body, model)
        answers: list[dict[str, Any]] = []
        complete = True
        if body["rows"]:
            frame, notes = request_frame(body["rows"], model.classifier)
            answers, complete = await _unless_gone(request, self.desk.explain(question, frame))
            for answer, row_notes in zip(answers, notes, strict=True):
                answer["notes"] += row_notes
        request.scope["facts"] |= {"complete": complete}
        seconds = round(time.perf_counter() - started, 3)
        return {
            "complete": complete,
            "model": model.sha256,
            "seconds": seconds,
            "answers": answers,
        }

    async def _map(self, request: Request, body: dict[str, Any]) -> Any:
        model = self.served.named(body["model"])
        return await asyncio.to_thread(
            self.atlas.draw, model, body["row"], body["columns"], body["plans"], body["size"]
        )

    async def _audit(self, request: Request, body: dict[str, Any]) -> Any:
        self._need_rows()
        work = self.desk.audit(
            tasks.audit_served,
            body["groups"],
            body["people"],
            body["model"],
            body["target"],
            seconds=self.limits.audit_seconds,
        )
        return await _unless_gone(request, work)

    async def _make_card(self, request: Request, body: dict[str, Any]) -> Any:
        # It depends on model and rows alone, so one is enough.
        if self._card is None:
            work = self.desk.audit(tasks.card, seconds=self.limits.audit_seconds, wait=True)
            self._card = await _unless_gone(request, work)
        return self._card

    async def _receipt(self, request: Request, body: dict[str, Any]) -> Any:
        model = self.served.named(body["model"])
        receipt = await asyncio.to_thread(
            make_receipt, model, body["row"], body["plan"], body["question"], self.key
        )
        return {"receipt": receipt}

    async def _verify(self, request: Request, body: dict[str, Any]) -> Any:
        receipt = body["receipt"]
        # A receipt of the model to compare with is checked by that model.
        stated = receipt.get("model")
        against = self.served.against
        other = (
            against is not None
            and isinstance(stated, dict)
            and stated.get("sha256") == against.sha256
        )
        if against is not None and other:
            model = against
        else:
            model = self.served.model
        checks = await asyncio.to_thread(verify_receipt, receipt, model, self.key)
        return {
            "valid": all(check.passed for check in checks),
            "checks": [vars(check) for check in checks],
        }

    async def _numbers(self, request: Request) -> Response:
        return Response(
            self.metrics.text(self.desk.waiting), media_type="text/plain; version=0.0.4"
        )

    def _need_rows(self) -> None:
        if self.served.rows is None:
            raise RefusedError(
                "There are no rows: start the server with --data.", code="no_data", status=404
            )


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled if the client hangs up."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    leaving = asyncio.create_task(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        # Retrieves the error of a task that was cancelled too late, or asyncio would log it.
        await asyncio.gather(working, leaving, return_exceptions=True)


# ---- answers -------------------------------------------------------------------------------------


def _json(document: Any, status: int = 200) -> Response:
    # ASCII, so that no page, proxy or terminal can read it in another encoding.
    return Response(
        json.dumps(document, allow_nan=False), status, media_type="application/json"
    )


def _error(error: InputError) -> Response:
    refused = RefusedError.of(error)
    response = _json(
        {"error": {"code": refused.code, "message": str(refused), "field": refused.field}},
        refused.status,
    )
    if refused.code == "busy":
        response.headers["retry-after"] = "5"
    if refused.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def _refuse(refused: RefusedError, scope: Scope, receive: Receive, send: Send) -> None:
    await _error(refused)(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status = error.status_code
    else:
        status = 500
    if status == 405:
        # Of the router, in no order.
        headers = getattr(error, "headers", None) or {}
        methods = ", ".join(sorted(headers.get("Allow", "").split(", ")))
        refused = RefusedError(f"This path takes {methods}.", code="method", status=status)
        response = _error(refused)
        response.headers["allow"] = methods
        return response
    if status == 404:
        message = "There is nothing here; the API is described in /api/openapi.json."
        return _error(RefusedError(message, code="not_found", status=status))
    return _error(RefusedError("This request cannot be answered.", status=status))


async def _fault(request: Request, error: Exception) -> Response:
    """Handle an unexpected error. The log names its type only: messages may quote requests."""
    log("fault", level=40, id=request.scope.get("request_id"), error=type(error).__name__)
    return _error(
        RefusedError("This failed; it is a fault of the server.", code="failed", status=500)
    )

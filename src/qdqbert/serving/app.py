"""The application of a server: routes, errors and limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qdqbert.inference.model import Model
from qdqbert.serving.batcher import Batcher
from qdqbert.serving.limits import Application, BadRequestError, CheckedBodies, Limits
from qdqbert.serving.metrics import Measured, Metrics
from qdqbert.serving.openai import openai_routes
from qdqbert.serving.responses import error_response, json_response
from qdqbert.serving.service import Models, Served
from qdqbert.serving.tasks import ROUTES, task_routes
from qdqbert.serving.text_embeddings_inference import text_embeddings_inference_routes

_ROUTES = (
    *("/v1/embeddings", "/v1/models", "/embed", "/rerank", "/predict"),
    *(f"/{route.task}" for route in ROUTES),
    *("/health", "/info", "/metrics", "/openapi.json"),
)


def build_app(
    models: Mapping[str, Model],
    *,
    metrics: Metrics | None = None,
    limits: Limits | None = None,
    api_key: str | None = None,
    after_shutdown: Callable[[], None] = lambda: None,
) -> Application:
    """Return an ASGI application that serves models.

    Its shutdown answers the requests that were accepted, and does not close the models.

    Args:
        models: The models by the names that requests use.
        metrics: Counts of the server.
        limits: What is accepted.
        api_key: Key that requests need, if there is one.
        after_shutdown: Called when all requests are answered.
    """
    limits = limits or Limits()
    metrics = metrics or Metrics()
    served = Models(
        [
            Served(
                name=name,
                model=model,
                batcher=Batcher(
                    model, max_queued=limits.max_queued, observe=metrics.observer(name)
                ),
                limits=limits,
            )
            for name, model in models.items()
        ]
    )
    every = served.by_name.values()
    metrics.watch_queues(lambda: {each.name: each.batcher.queued for each in every})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for each in every:
            each.batcher.close()
        after_shutdown()

    app = FastAPI(
        title="qdqbert",
        version=metadata.version("qdqbert"),
        description="Quantized models.",
        lifespan=lifespan,
        # Their pages load scripts from the internet.
        docs_url=None,
        redoc_url=None,
    )
    _add_errors(app)
    app.include_router(openai_routes(served))
    for prefix in ("", "/models/{model}"):
        app.include_router(text_embeddings_inference_routes(served), prefix=prefix)
        app.include_router(task_routes(served), prefix=prefix)
    _add_status(app, every, metrics)
    checked = CheckedBodies(app, limits=limits, api_key=api_key, refuse=_refusal)
    return Measured(checked, metrics=metrics, routes=_ROUTES)


def _add_status(app: FastAPI, served: Collection[Served], metrics: Metrics) -> None:
    @app.get("/health", tags=["status"], summary="Say whether the server answers")
    async def health() -> Response:
        return json_response({"status": "ok"})

    @app.get("/metrics", tags=["status"], summary="Metrics for Prometheus")
    async def get_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/info", tags=["status"], summary="Describe the models")
    async def info() -> Response:
        return json_response(
            {
                "version": app.version,
                "models": [
                    {
                        "name": each.name,
                        "task": each.model.task,
                        "engine": each.model.engine,
                        "target": each.model.target,
                        "max_input_length": each.model.max_length,
                        "max_client_batch_size": each.limits.max_texts,
                    }
                    for each in served
                ],
            }
        )


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(BadRequestError)
    async def bad_request(request: Request, error: BadRequestError) -> Response:
        return error_response(error, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> Response:
        return error_response(_described(error), request.url.path)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        found = BadRequestError(
            error.status_code, str(error.detail), "Validation", dict(error.headers or {})
        )
        return error_response(found, request.url.path)

    @app.exception_handler(Exception)
    async def failure(request: Request, error: Exception) -> Response:
        # The log of the server has the reason.
        found = BadRequestError(500, "The request failed in the server.", "Backend")
        return error_response(found, request.url.path)


def _described(error: RequestValidationError) -> BadRequestError:
    """Return an error that names the first field that is wrong."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"]
        return BadRequestError(422, f"The body is not JSON: {reason}.", "Validation")
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    text = first["msg"][:1].lower() + first["msg"][1:]
    return BadRequestError(
        422, f"`{place}`: {text}." if place else f"The body: {text}.", "Validation"
    )


def _refusal(error: BadRequestError) -> Application:
    async def refuse(scope: object, receive: object, send: object) -> None:
        response = error_response(error, scope["path"])  # type: ignore[index]
        await response(scope, receive, send)  # type: ignore[arg-type]

    return refuse

"""The application of a server: its routes, and how it reads requests and answers them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from typing_extensions import TypedDict

from qdqbert.runtime.model import Model
from qdqbert.serving.batcher import Batcher
from qdqbert.serving.cohere import COHERE
from qdqbert.serving.cors import answering_other_origins
from qdqbert.serving.limits import (
    Application,
    BadRequestError,
    BodyReader,
    Limits,
    Receive,
    Scope,
    Send,
)
from qdqbert.serving.metrics import Metrics
from qdqbert.serving.ollama import OLLAMA
from qdqbert.serving.openai import openai_routes
from qdqbert.serving.openapi import describe
from qdqbert.serving.own_route import own_route
from qdqbert.serving.page import page
from qdqbert.serving.rerank import RERANK
from qdqbert.serving.responses import Health, Response, error_response, json_response
from qdqbert.serving.routing import Found, Route, Router, error_form_of, respond
from qdqbert.serving.sagemaker import sagemaker_routes
from qdqbert.serving.service import Models, Served, ServedInfo
from qdqbert.serving.system_one import SYSTEM_ONE
from qdqbert.serving.tasks import task_routes
from qdqbert.serving.text_embeddings_inference import TEXT_EMBEDDINGS_INFERENCE, TOKENIZING
from qdqbert.serving.vllm import VLLM

# Time after which a request watches whether its client is still there.
_WATCH_SECONDS = 0.2
_JSON = "application/json"
_PAGE_TYPE = "text/html; charset=utf-8"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Info(TypedDict):
    """Answer of `/info`."""

    version: str
    models: list[ServedInfo]


def build_app(
    models: Mapping[str, Model],
    *,
    metrics: Metrics | None = None,
    limits: Limits | None = None,
    api_key: str | None = None,
    allow_origin: Collection[str] = (),
    after_shutdown: Callable[[], None] = lambda: None,
    running_workers: Callable[[], int] | None = None,
) -> Application:
    """Return an ASGI application that serves models.

    Its shutdown answers the requests that were accepted, and does not close the models.

    Args:
        models: The models by the names that requests use.
        metrics: Counts of the server.
        limits: Limits of requests.
        api_key: Key that requests need, if there is one.
        allow_origin: Origins whose pages may read responses in a browser; "*" for all.
        after_shutdown: Called when all requests are answered.
        running_workers: Returns how many processes of the server run, if it has several.
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
                count_truncated=functools.partial(metrics.count_truncated, name),
            )
            for name, model in models.items()
        ]
    )
    every = served.by_name.values()
    metrics.watch_queues(lambda: {each.name: each.batcher.queued for each in every})

    def stop() -> None:
        for each in every:
            each.batcher.close()
        after_shutdown()

    of_tasks = task_routes()
    of_hugging_face = [*TEXT_EMBEDDINGS_INFERENCE, *of_tasks]
    routes = [
        *openai_routes(served),
        *COHERE,
        *RERANK,
        *OLLAMA,
        *of_hugging_face,
        *VLLM,
        *SYSTEM_ONE,
        *TOKENIZING,
        own_route([*of_tasks, *TEXT_EMBEDDINGS_INFERENCE]),
        *sagemaker_routes(list(models.values()), of_hugging_face),
    ]
    status = _status_routes(
        routes, served, metrics, needs_key=api_key is not None, running_workers=running_workers
    )
    app = _App(
        models=served,
        router=Router([*routes, *status]),
        bodies=BodyReader(limits, api_key),
        metrics=metrics,
        stop=stop,
    )
    return answering_other_origins(app, allow_origin) if allow_origin else app


@dataclasses.dataclass(frozen=True, kw_only=True)
class _App:
    """An ASGI application."""

    models: Models
    router: Router
    bodies: BodyReader
    metrics: Metrics
    stop: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start and stop with the server."""
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        # A slash at either end does not count.
        path = "/" + scope["path"].removeprefix(scope.get("root_path", "")).strip("/")
        found = self.router.find(path, scope["method"])
        # A client that leaves gets no response.
        status = 499
        try:
            response = await self._respond(scope, path, found, receive)
            if response is not None:
                status = response.status
                await response.send(send)
        finally:
            # Other paths are counted together, so that no client can make up names.
            name = "other" if found is None else found[0].path
            self.metrics.count(name, status, time.perf_counter() - start)

    async def _respond(
        self, scope: Scope, path: str, found: Found, receive: Receive
    ) -> Response | None:
        body: bytes | None = None
        try:
            # One timeout for both: it takes as long as the other steps of a small request.
            async with asyncio.timeout(self.bodies.seconds) as deadline:
                body = await self.bodies.read(path, scope["headers"], receive)
                if body is None:
                    return None
                deadline.reschedule(None)
                with _ended_with_client(receive, deadline):
                    return await respond(found, self.models, scope["method"], path, body)
        except BadRequestError as error:
            return error_response(error, error_form_of(found, path))
        except TimeoutError:
            if body is not None:
                return None
            return error_response(self.bodies.too_slow(), error_form_of(found, path))

    async def _live(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        self.stop()
        await send({"type": "lifespan.shutdown.complete"})


@contextlib.contextmanager
def _ended_with_client(receive: Receive, deadline: asyncio.Timeout) -> Iterator[None]:
    """Let a timeout expire if the client leaves in the `with` block."""
    loop = asyncio.get_running_loop()
    watching: list[asyncio.Task[None]] = []

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        deadline.reschedule(loop.time())

    # Most requests are answered before that, and save the task.
    timer = loop.call_later(_WATCH_SECONDS, lambda: watching.append(asyncio.ensure_future(watch())))
    try:
        yield
    finally:
        timer.cancel()
        for task in watching:
            task.cancel()


def _status_routes(
    routes: Sequence[Route],
    models: Models,
    metrics: Metrics,
    *,
    needs_key: bool,
    running_workers: Callable[[], int] | None,
) -> list[Route]:
    version = metadata.version("qdqbert")
    every = models.by_name.values()

    async def health(body: None, served: None) -> Response:
        if running_workers is None:
            return json_response(Health(status="ok"))
        if running := running_workers():
            return json_response(Health(status="ok", workers=running))
        starting = json_response(Health(status="starting", workers=0))
        return dataclasses.replace(starting, status=503)

    async def show_metrics(body: None, served: None) -> Response:
        return Response(body=metrics.text(), content_type=_METRICS_TYPE)

    async def info(body: None, served: None) -> Response:
        return json_response({"version": version, "models": [each.described for each in every]})

    @functools.cache
    def description() -> Response:
        return json_response(describe([*routes, *status], models, version=version))

    async def openapi(body: None, served: None) -> Response:
        return description()

    async def show_page(body: None, served: None) -> Response:
        text = page([*routes, *status], models, version=version, needs_key=needs_key)
        return Response(body=text.encode(), content_type=_PAGE_TYPE)

    named = {
        "/": ("Show the models and routes to people", show_page, str, _PAGE_TYPE),
        "/health": ("Say whether the server answers", health, Health, _JSON),
        "/metrics": ("Metrics for Prometheus", show_metrics, str, _METRICS_TYPE),
        "/info": ("Describe the models", info, Info, _JSON),
        "/openapi.json": ("Describe all routes", openapi, dict[str, Any], _JSON),
    }
    status = [
        Route(path=path, summary=summary, tag="status", run=run, answer=answer, media_type=kind)
        for path, (summary, run, answer, kind) in named.items()
    ]
    return status

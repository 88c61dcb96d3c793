"""Serve quantized models on a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.choices import EngineName, KernelName
from qdqbert.common.errors import QdqBertError, UserInputError
from qdqbert.common.extras import require
from qdqbert.common.keywords import suggest_keywords
from qdqbert.common.progress import progress_of
from qdqbert.engines.cuda.device import is_gpu
from qdqbert.serving.limits import Application, Limits, Message, Receive, Scope
from qdqbert.serving.options import ServerOptions

# Requests that a replica has at a time. Batches grow with them; Ray's own default is 5.
_ONGOING_REQUESTS = 1024
# A gateway holds the requests of all replicas.
_ONGOING_IN_GATEWAY = 65_536
# The keys of an ASGI scope that a replica reads. Others may have values that cannot be sent.
_OF_SCOPE = ("type", "http_version", "method", "path", "root_path", "query_string", "headers")

# As the server counts them.
_CLIENT_HAS_GONE = 499

_LOGGER = logging.getLogger("qdqbert")


@suggest_keywords
def application(
    *models: str | Path,
    engine: EngineName | None = None,
    kernel: KernelName | None = None,
    device: str | int | None = None,
    threads: int = 1,
    api_key: str | None = None,
    allow_origin: Sequence[str] = (),
    max_body: int = 2_000_000,
    max_texts: int = 2048,
    max_queued: int = 16_384,
    gateways: int = 0,
    deployment: Mapping[str, Any] | None = None,
) -> Any:
    """Return an application of Ray Serve with the routes of `qdqbert.serve`.

    Each replica is a process with all of the models, which runs the requests that Ray gives it in
    batches. Ray starts replicas again that die, and sends requests to the others meanwhile. The
    requests that a replica had when it died get status 500, or are tried again by a gateway.

    Args:
        models: Folders that `quantize` wrote, or float checkpoints, on each machine of the cluster;
            or names on the hub: OWNER/NAME or NAME. Requests name a model by the name of its
            folder.
        engine: Library that runs the graphs. By default the fastest one that is installed.
        kernel: Instruction set of the native engine. By default the fastest one.
        device: As in `load`. On a GPU, a replica has one, unless `ray_actor_options` say otherwise.
        threads: Number of threads, and so of CPUs, of a replica.
        api_key: Key that requests need, as `Authorization: Bearer KEY`. By default the environment
            variable `QDQBERT_API_KEY` of the replicas. Without either, no key is needed.
        allow_origin: Origins whose pages may use the server from a browser; "*" for all.
        max_body: Largest body of a request in bytes. Larger ones get status 413.
        max_texts: Number of inputs in a request. More get status 413.
        max_queued: Number of inputs that may wait for a model of a replica. Requests that find more
            waiting get status 429.
        gateways: Number of processes that hand requests to the replicas, and try a request once
            more if its replica dies. With 0, Ray hands requests to the replicas itself.
        deployment: Options of `ray.serve.deployment` for the replicas, such as `num_replicas`,
            `autoscaling_config` and `ray_actor_options`.

    Returns:
        An `Application` for `ray.serve.run` and for the command `serve run`.

    Raises:
        UserInputError: A value is not allowed.
        MissingExtraError: The extra `ray-serve` is not installed.

    Example:
        >>> from ray import serve
        >>> from qdqbert.integrations import ray_serve
        >>> app = ray_serve.application("./my-embedder-int8", deployment={"num_replicas": 8})
        >>> serve.run(app)
    """
    options = ServerOptions(
        models=tuple(map(str, models)),
        engine=engine,
        kernel=kernel,
        device=device,
        threads=threads,
        api_key=api_key,
        allow_origin=tuple(allow_origin),
        max_body=max_body,
        max_texts=max_texts,
        max_queued=max_queued,
    )
    if gateways < 0:
        raise UserInputError(
            f"`gateways={gateways}` is negative. Expected 0 for none, or a number of processes.",
            argument="gateways",
        )
    require("`ray_serve`", "ray-serve")
    from ray import serve

    # Ray calls functions only, and takes other callables for applications.
    def build() -> Any:
        return _build(options)

    settings = dict(deployment or {})
    gpus = {"num_gpus": 1} if is_gpu(options.device) else {}
    actor = {"num_cpus": threads, **gpus, **settings.pop("ray_actor_options", {})}
    made = serve.deployment(
        **{"name": "qdqbert", "max_ongoing_requests": _ONGOING_REQUESTS, **settings},
        ray_actor_options=actor,
    )
    replicas = made(serve.ingress(build)(_Replica))
    if not gateways:
        return replicas.bind()

    # It needs this package where the replicas do.
    packages = {"runtime_env": actor["runtime_env"]} if "runtime_env" in actor else {}
    gateway = serve.deployment(
        name=f"{replicas.name}-gateway",
        num_replicas=gateways,
        max_ongoing_requests=_ONGOING_IN_GATEWAY,
        ray_actor_options={"num_cpus": 0, **packages},
    )
    return gateway(_Gateway).bind(replicas.bind(), Limits.of(options))


class _Replica:
    """A replica. Ray makes it call the application that `_build` returns."""

    async def answer(self, scope: Scope, body: bytes, is_whole: bool) -> list[Message]:
        """Return all messages of the response to a request that a gateway has read."""
        app: Any = self
        return await _response(app, scope, body, is_whole)


class _Gateway:
    """Hands requests to the replicas.

    Requests change nothing, so that one whose replica dies can be tried again.
    """

    def __init__(self, replicas: Any, limits: Limits) -> None:
        self._replicas = replicas
        self._limits = limits

    async def __call__(self, request: Any) -> Any:
        """Return the response to a request, both of Starlette."""
        from ray.exceptions import ObjectLostError, RayActorError
        from starlette.responses import Response

        read = await _read(request.receive, self._limits)
        if read is None:
            return Response(status_code=_CLIENT_HAS_GONE)
        scope = {each: request.scope[each] for each in _OF_SCOPE}
        ask = functools.partial(self._replicas.answer.remote, scope, *read)
        try:
            start, body = await ask()
        except (RayActorError, ObjectLostError) as error:
            _LOGGER.warning("A request is tried again, as its replica is gone: %s", error)
            start, body = await ask()
        response = Response(body["body"], start["status"])
        response.raw_headers = start["headers"]
        return response


async def _read(receive: Receive, limits: Limits) -> tuple[bytes, bool] | None:
    """Return the body of a request, and whether it came in time; `None` if the client has gone.

    Of a body that is too large, what shows that is enough. A replica refuses it.
    """
    body = bytearray()
    is_whole = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limits.body_seconds):
            while not is_whole:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                is_whole = len(body) > limits.max_body or not message.get("more_body", False)
    return bytes(body), is_whole


async def _response(app: Application, scope: Scope, body: bytes, is_whole: bool) -> list[Message]:
    """Return the messages of an application's response.

    Args:
        app: The application.
        scope: Scope of the request.
        body: What was read of the body.
        is_whole: Whether that is all of it. If not, the client was too slow.
    """
    messages: list[Message] = []
    given = iter([{"type": "http.request", "body": body, "more_body": not is_whole}])

    async def receive() -> Message:
        for message in given:
            return message
        if not is_whole:
            raise TimeoutError
        # Until the response is made. Ray cancels this call if the client leaves before.
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return messages


def _build(options: ServerOptions) -> Any:
    """Load the models in a replica, which closes them when it stops."""
    from ray import serve

    from qdqbert.serving.app import build_app
    from qdqbert.serving.metrics import Metrics
    from qdqbert.serving.models import open_models

    key = options.key
    options.warn_of_empty_key()
    opened = contextlib.ExitStack()
    try:
        models = opened.enter_context(open_models(options, progress_of(False)))
    except QdqBertError as error:
        # Ray shows the traceback as text, whose last line is the reason.
        raise type(error)(str(error)) from None
    return build_app(
        models,
        # Ray asks any replica for its metrics.
        metrics=Metrics(labels={"replica": serve.get_replica_context().replica_tag}),
        limits=Limits.of(options),
        api_key=key,
        allow_origin=options.allow_origin,
        after_shutdown=opened.close,
    )

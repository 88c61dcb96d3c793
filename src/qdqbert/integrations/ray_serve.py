"""Serve quantized models on a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.choices import EngineName, KernelName
from qdqbert.common.errors import QdqBertError
from qdqbert.common.extras import require
from qdqbert.common.keywords import suggest_keywords
from qdqbert.common.progress import progress_of
from qdqbert.engines.cuda.device import is_gpu
from qdqbert.serving.options import ServerOptions

# Requests that a replica has at a time. Batches grow with them; Ray's own default is 5.
_ONGOING_REQUESTS = 1024


@suggest_keywords
def application(
    *models: str | Path,
    engine: EngineName | None = None,
    kernel: KernelName | None = None,
    device: str | None = None,
    threads: int = 1,
    api_key: str | None = None,
    allow_origin: Sequence[str] = (),
    max_body: int = 2_000_000,
    max_texts: int = 2048,
    max_queued: int = 16_384,
    deployment: Mapping[str, Any] | None = None,
) -> Any:
    """Return an application of Ray Serve with the routes of `qdqbert.serve`.

    Each replica is a process with all of the models, which runs the requests that Ray gives it in
    batches. Ray starts replicas again that die, and sends requests to the others meanwhile.

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
        deployment: Options of `ray.serve.deployment`, such as `num_replicas`,
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
    require("`ray_serve`", "ray-serve")
    from ray import serve

    # Ray calls functions only, and takes other callables for applications.
    def build() -> Any:
        return _build(options)

    settings = dict(deployment or {})
    gpus = {"num_gpus": 1} if is_gpu(device) else {}
    actor = {"num_cpus": threads, **gpus, **settings.pop("ray_actor_options", {})}
    made = serve.deployment(
        **{"name": "qdqbert", "max_ongoing_requests": _ONGOING_REQUESTS, **settings},
        ray_actor_options=actor,
    )
    return made(serve.ingress(build)()).bind()


def _build(options: ServerOptions) -> Any:
    """Load the models in a replica, which closes them when it stops."""
    from ray import serve

    from qdqbert.serving.app import build_app
    from qdqbert.serving.limits import Limits
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

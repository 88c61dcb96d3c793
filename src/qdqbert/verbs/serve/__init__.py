"""Serve quantized models over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qdqbert.choices import EngineName, KernelName
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.serve.options import ServeOptions

if TYPE_CHECKING:
    from qdqbert.verbs.serve.report import ServeReport


def serve(
    models: str | Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: EngineName | None = None,
    kernel: KernelName | None = None,
    threads: int | None = None,
    api_key: str | None = None,
    max_body: int = 2_000_000,
    max_texts: int = 2048,
    max_queued: int = 16_384,
    shutdown_seconds: int = 30,
    progress: Progress | bool = False,
) -> ServeReport:
    """Serve models in INT8 over HTTP, until the process gets SIGINT or SIGTERM.

    Requests of many clients run together in batches. Routes are those of OpenAI's embeddings, of
    text-embeddings-inference, and one for each task.

    Args:
        models: Folders that `quantize` wrote, or float checkpoints; or names on the hub: OWNER/NAME
            or NAME. Requests name a model by the name of its folder.
        host: Address to listen on. "0.0.0.0" accepts requests from other machines.
        port: Port to listen on; 0 takes any free one.
        engine: Library that runs the graphs. By default the fastest one that is installed.
        kernel: Instruction set of the native engine, which this CPU must have. By default the
            fastest one.
        threads: Number of threads of each model. By default one for each core.
        api_key: Key that requests need, as `Authorization: Bearer KEY`. By default the environment
            variable `QDQBERT_API_KEY`, which other users of the machine cannot see. Without either,
            no key is needed.
        max_body: Largest body of a request in bytes. Larger ones get status 413.
        max_texts: Number of inputs in a request. More get status 413.
        max_queued: Number of inputs that may wait for a model. Requests that find more waiting get
            status 429, with the time to wait.
        shutdown_seconds: Time to answer the accepted requests after a signal to stop.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        Numbers of requests and inputs that were answered.

    Raises:
        UserInputError: An argument cannot be used, or the address is taken.
        CheckpointError: See `load`.
        MissingExtraError: The extra `serve` or the engine is not installed.

    Example:
        >>> qdqbert.serve("./my-embedder-int8", port=8080)
    """
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    from qdqbert.verbs.serve.run import run

    return run(ServeOptions(**arguments), shown)

"""Serve quantized models over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.progress import Progress
from qdqbert.verbs.call import public
from qdqbert.verbs.serve.options import ServeOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.serve import ServeReport


@public(ServeOptions)
def serve(options: ServeOptions, progress: Progress) -> ServeReport:
    """Serve models in INT8 over HTTP, until the process gets SIGINT or SIGTERM.

    Requests of many clients run together in batches. The routes follow OpenAI
    (embeddings), Jina, Cohere and vLLM (reranking), text-embeddings-inference and SageMaker. Each
    task also has a route of its own. The page at `/` shows an example call of each model.

    Returns:
        Numbers of requests and inputs that were answered.

    Raises:
        UserInputError: An argument cannot be used, or the address is taken.
        CheckpointError: See `load`.
        MissingExtraError: The extra `serve` or the engine is not installed.

    Example:
        >>> qdqbert.serve("./my-embedder-int8", port=8080)
    """
    from qdqbert.verbs.serve.run import run

    return run(options, progress)

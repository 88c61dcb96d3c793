"""Load the models of a server."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator

from qdqbert.common.errors import UserInputError
from qdqbert.common.files import name_of
from qdqbert.common.objects import fetched
from qdqbert.common.progress import Progress
from qdqbert.loading.load import load
from qdqbert.runtime.model import Model
from qdqbert.serving.options import ServerOptions


@contextlib.contextmanager
def open_models(options: ServerOptions, progress: Progress) -> Iterator[dict[str, Model]]:
    """Load models and their graphs, so that no request waits for that.

    Yields:
        The models by the names that requests use.

    Raises:
        UserInputError: Two folders have the same name, or `load` does not run the task of one.
        CheckpointError: A folder was not written by `quantize`, or is incomplete.
    """
    fetch_models(options, progress)
    with contextlib.ExitStack() as stack:
        models = {
            name: stack.enter_context(
                load(
                    path,
                    engine=options.engine,
                    kernel=options.kernel,
                    device=options.device,
                    threads=options.threads,
                )
            )
            for name, path in _names(options.models).items()
        }
        for name, model in models.items():
            with progress.stage(f"Loading {name}"):
                # Loads the graph.
                model.run_in_stream(model.tokenizing_job(), [])
        yield models


def fetch_models(options: ServerOptions, progress: Progress) -> None:
    """Download models that URLs name, which `load` then finds in the cache."""
    for each in options.models:
        with fetched(each, "models", progress=progress):
            pass


def _names(paths: tuple[str, ...]) -> dict[str, str]:
    """Return the folders by the names that requests use."""
    names = [name_of(path) for path in paths]
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise UserInputError(
                f"`models`: {count} folders are called {name!r}. Requests name models by their "
                "folders; rename one of them.",
                argument="models",
            )
    return dict(zip(names, paths, strict=True))

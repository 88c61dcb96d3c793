"""`qdqbert serve`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import serve_table
from qdqbert.verbs.serve import serve
from qdqbert.verbs.serve.options import ServeOptions

COMMAND = Command(
    name="serve",
    function=serve,
    options=ServeOptions,
    positional=("models",),
    render=serve_table,
    example="qdqbert serve ./my-embedder-int8 ./my-reranker-int8 --port 8080",
    after_interrupt=lambda _: "The server has stopped.",
    runs_artifacts=True,
)

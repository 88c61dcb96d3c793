"""`qdqbert push`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import push_table
from qdqbert.verbs.push import push
from qdqbert.verbs.push.options import PushOptions

COMMAND = Command(
    name="push",
    function=push,
    options=PushOptions,
    positional=("model", "repo"),
    render=push_table,
    example="qdqbert push ./my-classifier-int8 me/my-classifier-int8 --dry-run",
    after_interrupt=lambda _: "The repository has all files or none of them.",
    runs_artifacts=True,
)

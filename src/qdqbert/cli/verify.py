"""`qdqbert verify`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import verify_table
from qdqbert.verbs.verify import verify
from qdqbert.verbs.verify.options import VerifyOptions

COMMAND = Command(
    name="verify",
    function=verify,
    options=VerifyOptions,
    positional=("model",),
    render=verify_table,
    example="qdqbert verify ./my-classifier-int8",
    after_interrupt=lambda _: "Nothing was changed.",
    runs_artifacts=True,
)

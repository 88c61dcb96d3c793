"""`qdqbert evaluate`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import evaluate_table
from qdqbert.verbs.evaluate import evaluate
from qdqbert.verbs.evaluate.options import EvaluateOptions

COMMAND = Command(
    name="evaluate",
    function=evaluate,
    options=EvaluateOptions,
    positional=("model",),
    first=("model", "data", "reference", "output", "engine", "max_drop"),
    render=evaluate_table,
    example=(
        "qdqbert evaluate ./my-classifier-int8 --data dev.tsv --engine openvino "
        "--reference ./my-classifier"
    ),
)

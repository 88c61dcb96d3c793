"""`qdqbert train`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import train_table
from qdqbert.verbs.train import train
from qdqbert.verbs.train.options import TrainOptions

COMMAND = Command(
    name="train",
    function=train,
    options=TrainOptions,
    positional=("model",),
    first=("model", "output", "train_data", "eval_data", "qat", "distill_from"),
    render=train_table,
    example=(
        "qdqbert train ./my-classifier -o ./my-qat --train-data train.csv --eval-data dev.csv "
        "--qat --distill-from ./my-classifier"
    ),
    after_interrupt=lambda given: (
        f"Checkpoints are in {given['output']}-checkpoints. Continue with `--resume`."
    ),
)

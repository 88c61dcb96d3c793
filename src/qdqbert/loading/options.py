"""Options of `load`."""

from __future__ import annotations

from qdqbert.common.choices import Precision
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.task_kinds import TaskName
from qdqbert.runtime.options import EngineOptions


class LoadOptions(EngineOptions):
    """Options of `load`.

    Attributes:
        task: The task that the model must have, as a check. Type checkers know the class of the
            returned object by it. With "sparse-embedding", a masked language model is run as
            SPLADE, with "feature-extraction" the encoder of a float checkpoint is an embedder, and
            with "zero-shot-classification" a classifier of entailment chooses among labels of a
            call.
        precision: How a float checkpoint runs: in "int8", or in "float", to compare with, which
            the engine "onnxruntime" runs, too. "float" is the same as the target "float". On a GPU,
            "float16" instead of "float".
        adapter: Adapter of a float checkpoint that is merged into its weights, by its name. Without
            it, an embedder that has adapters for several tasks, as jina-embeddings-v3, takes the
            name in each call: `encode(texts, task="retrieval.query")`.
        check: Whether a float checkpoint is compared with INT8 on 16 built-in texts. A message of
            level INFO says how close they are, or of level WARNING if INT8 is not usable.
    """

    task: TaskName | None = None
    precision: Precision = "int8"
    adapter: str | None = None
    check: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.precision == "float" and self.target not in (None, "float"):
            raise UserInputError(
                f"`precision='float'` contradicts the INT8 target `target={self.target!r}`. Pass "
                "one.",
                argument="precision",
            )
        is_half = self.precision == "float16"
        if is_half and self.device in (None, "cpu"):
            raise UserInputError(
                "`precision='float16'` is for GPUs. Pass `device='cuda'` with it, or 'float' on "
                "the CPU.",
                argument="precision",
            )
        if self.precision == "float" and self.device not in (None, "cpu"):
            raise UserInputError(
                f"`precision='float'` runs on the CPU. Pass 'float16' with "
                f"`device={self.device!r}`.",
                argument="precision",
            )

    @property
    def is_float(self) -> bool:
        """Whether a float checkpoint runs in float or float16."""
        return self.precision != "int8" or self.target == "float"

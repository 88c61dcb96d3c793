"""Options of `evaluate`."""

from __future__ import annotations

import dataclasses

from qdqbert.choices import EngineName, PoolingMode, ProviderName, TargetName, TaskName
from qdqbert.errors import UserInputError
from qdqbert.objects import Rows
from qdqbert.options import (
    ColumnOptions,
    LimitOptions,
    OnnxOptions,
    TaskOptions,
    check_onnx_options,
    check_options,
    is_onnx_file,
    normalize_options,
    option,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions(LimitOptions, ColumnOptions, TaskOptions, OnnxOptions):
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote, a checkpoint (a local folder or a hub id), or an .onnx
            file, float or quantized.
        data: Labeled examples: a .csv, .tsv, .jsonl or .json file, a folder of classes, CoNLL
            columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or `datasets.Dataset`.
        reference: Float checkpoint or .onnx file to compare with, example by example. An .onnx
            file runs on ONNX Runtime.
        task: Name of the task in transformers. Inferred from the model by default.
        engine: Library that runs the model. By default the one that `load` takes for a quantized
            folder, ONNX Runtime for an .onnx file, and PyTorch for a checkpoint, which the native
            engine runs in INT8, as `load` does.
        provider: Execution provider of ONNX Runtime; "cpu" by default.
        target: Graph to evaluate, if a folder has several for one engine. By default the one that
            was made for the engine.
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default.
        max_examples: Number of examples to read at most. All by default.
        max_length: Longest input in tokens. The limit that the model was quantized with, or that
            of the task or the checkpoint, by default.
        batch_size: Number of examples in a batch.
        allow_leakage: Also score examples that the model was calibrated on. The report has their
            number.
        output: Folder for `predictions.jsonl`, `report.html` and the files of the task. With a
            reference, `changed.jsonl` lists the predictions that differ, the largest change first.
    """

    model: str
    data: str | Rows
    reference: str | None = None
    task: TaskName | None = None
    engine: EngineName | None = None
    provider: ProviderName | None = None
    target: TargetName | None = None
    pooling: PoolingMode | None = None
    max_examples: int | None = option(None, at_least=1)
    max_length: int | None = option(None, at_least=3)
    batch_size: int = option(8, at_least=1)
    allow_leakage: bool = False
    output: str | None = option(None, short="o")

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        normalize_options(self)
        check_options(self)
        if self.limits and self.reference is None:
            name, value = next(iter(self.limits.items()))
            raise UserInputError(
                f"`{name}={value:g}` compares the model with a reference. Pass the float model as "
                "`reference`.",
                argument=name,
            )
        if not self.onnx_files:
            check_onnx_options(self, self.model)

    @property
    def onnx_files(self) -> tuple[str, ...]:
        """The .onnx files among the model and the reference."""
        models = (self.model, self.reference)
        return tuple(name for name in models if name is not None and is_onnx_file(name))

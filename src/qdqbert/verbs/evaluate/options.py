"""Options of `evaluate`."""

from __future__ import annotations

from pathlib import Path

from qdqbert.common.choices import EngineName, ProviderName, TargetName
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import Copied, ModelOption, OptionalData, OptionalModel, OptionalPath
from qdqbert.common.options.columns import check_columns
from qdqbert.common.options.declared import option
from qdqbert.common.options.limits import Limits
from qdqbert.common.options.onnx import check_onnx_options, is_onnx_file
from qdqbert.common.storage import place_of
from qdqbert.pipeline.calls import BatchCall
from qdqbert.runtime.artifact import is_artifact


class EvaluateOptions(BatchCall):
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote, a checkpoint (a local folder, a URL or a hub id), or an
            .onnx file, float or quantized; in Python also a model in memory, as in `quantize`.
        data: Labeled examples: a .csv, .jsonl, .json or .parquet file, a folder, CoNLL columns, the
            URL of one, `hub:NAME@SPLIT`; in Python also a list, DataFrame or `datasets.Dataset`.
            With a reference, examples need no labels, and built-in English sentences are the
            default.
        reference: Float checkpoint, .onnx file or model in memory to compare with, example by
            example. An .onnx file runs on ONNX Runtime, and a checkpoint in PyTorch, or in float on
            the native engine if `quantize` does not take its type.
        engine: Library that runs the model. By default the engine that `load` chooses for a
            quantized folder, ONNX Runtime for an .onnx file, and PyTorch for a checkpoint. "native"
            runs a checkpoint in INT8, as `load` does.
        provider: Execution provider of ONNX Runtime; "cpu" by default.
        target: Graph to evaluate, if a folder has several. By default the one that was made for
            the engine.
        max_examples: Number of examples to read at most. All by default.
        allow_leakage: Also score examples that the model was calibrated or trained on, as far as it
            is known. The report has their number.
        output: Folder or URL for `predictions.jsonl`, `report.html` and the files of the task. With
            a reference, `changed.jsonl` lists the predictions that differ, the largest change
            first.
        benchmark: Also measure the latency of an .onnx file and of its reference, on the same
            engine. They take turns in processes of their own.
        limits: Limits on the difference to the reference.
    """

    model: ModelOption = option(kw_only=False)
    data: OptionalData = option(default=None, kw_only=False)
    reference: OptionalModel = option(default=None)
    engine: EngineName | None = None
    provider: ProviderName | None = None
    target: TargetName | None = None
    max_examples: int | None = option(default=None, at_least=1)
    allow_leakage: bool = False
    output: OptionalPath = option(default=None, short="o", writes="filled")
    benchmark: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limits.given() and self.reference is None:
            name, value = next(iter(self.limits.given().items()))
            raise UserInputError(
                f"`{name}={value:g}` compares the model with a reference. Pass the float model as "
                "`reference`.",
                argument=name,
            )
        if self.data is None and self.reference is None:
            raise UserInputError(
                "`data` is missing. Pass labeled examples. Or pass the float model as `reference`, "
                "to compare with it on built-in sentences.",
                argument="data",
            )
        check_columns(self.columns, [self.data], "`data`")
        if self.output is not None and place_of(self.output).is_file():
            raise UserInputError(
                f"`output={self.output!r}` is a file. Pass a folder, which need not exist.",
                argument="output",
            )
        is_float = self.reference is not None and not is_artifact(Path(self.reference))
        if self.benchmark and not (is_float and is_onnx_file(self.model)):
            raise UserInputError(
                "`benchmark=True` compares an .onnx file as `model` with a checkpoint or an .onnx "
                "file as `reference`. Run `qdqbert benchmark` for other models.",
                argument="benchmark",
            )
        if not self.onnx_files:
            check_onnx_options(self.onnx, self.model)

    @property
    def onnx_files(self) -> tuple[str | Copied, ...]:
        """The .onnx files among the model and the reference."""
        models = (self.model, self.reference)
        return tuple(name for name in models if name is not None and is_onnx_file(name))

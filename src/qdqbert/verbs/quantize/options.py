"""Options of `quantize`."""

from __future__ import annotations

import dataclasses

from qdqbert.choices import (
    CalibratorName,
    Embeddings,
    PoolingMode,
    RecipeName,
    TargetChoice,
    TaskName,
    VerificationData,
    WeightsFor,
)
from qdqbert.errors import UserInputError
from qdqbert.objects import Rows, SavedModel
from qdqbert.options import (
    CalibratorOptions,
    ColumnOptions,
    LimitOptions,
    OnnxOptions,
    QuantizerOverrides,
    TaskOptions,
    check_onnx_options,
    check_options,
    check_percentile,
    is_onnx_file,
    normalize_options,
    option,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationOptions(CalibratorOptions):
    """Calibration.

    Attributes:
        recalibrate: Calibrate again, even if the checkpoint's own quantizers have ranges.
        recalibrate_weights: Take the ranges of weights from the weights, even if the checkpoint
            stores some.
        ranges_from: Folder that an earlier call wrote for the same model. Its ranges are used
            again, for other targets or settings.
        seed: Seed that draws the calibration examples.
        ray: Calibrate on a Ray cluster, or on the one with this address. Ray is started on this
            machine if there is none.
    """

    recalibrate: bool = False
    recalibrate_weights: bool = False
    ranges_from: str | None = None
    seed: int = 0
    ray: bool | str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """Form of the graphs.

    Attributes:
        weights_for: CPUs that the weights are encoded for: "vnni" uses all 8 bits, which is exact
            only on CPUs with VNNI; "any" is exact on all of them.
        embeddings: How embedding tables are stored.
        dedicated_qdq_pairs: Write one Q/DQ pair for each reader of an activation instead of one
            per activation.
    """

    weights_for: WeightsFor = "any"
    embeddings: Embeddings = "int8"
    dedicated_qdq_pairs: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeOptions(
    CalibrationOptions,
    LimitOptions,
    QuantizerOverrides,
    GraphOptions,
    ColumnOptions,
    TaskOptions,
    OnnxOptions,
):
    """Common options.

    Attributes:
        model: Checkpoint: a local folder or a hub id; or an .onnx file. In Python also `(model,
            tokenizer)` of transformers, a pipeline, a `SentenceTransformer` or a `CrossEncoder`. By
            default the packaged all-MiniLM-L6-v2 (extra `demo`).
        output: Folder to write: by default, the name of the model and `-int8`, in the current
            folder.
        targets: Runtimes to write a graph for, all from one calibration. By default those of the
            engines that are installed here: "native", "onnxruntime" and "openvino". "auto" measures
            all of these engines on the calibration data, and writes the fastest graph that is close
            enough to float.
        recipe: Which tensors to quantize. By default those of the checkpoint's own quantizers, or
            the target's default recipe.
        calibration_data: Examples to calibrate on: a .csv, .tsv, .jsonl, .json or .txt file, a
            folder of classes, CoNLL columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`. Built-in English sentences by default.
        eval_data: Labeled examples to compare INT8 with float on, in the form of
            `calibration_data`. If only one of the two is given, it is split: a part calibrates, and
            INT8 is compared with float on the rest, with metrics if there are labels.
        task: Name of the task in transformers. Inferred from the checkpoint by default.
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default.
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        batch_size: Number of examples in a batch.
        benchmark: Measure the latency of INT8 and of float, which takes 10 seconds or more for
            each graph and engine. Measured by default.
        overwrite: Replace an output folder that an earlier call wrote.
        report: File for the report, which is also written if a limit is not met. HTML if its name
            ends in .html, JSON otherwise.
        verification_data: Inputs that are stored with their results in float, for `verify`.
            "built-in" are English sentences of this package. "held-out" are examples of
            `calibration_data` or `eval_data`, whose tokens can be turned back into their texts.
    """

    model: str | SavedModel | None = None
    output: str | None = option(None, short="o")
    targets: tuple[TargetChoice, ...] = option((), flag="target")
    recipe: RecipeName | None = None
    calibration_data: str | Rows | None = None
    eval_data: str | Rows | None = None
    task: TaskName | None = None
    pooling: PoolingMode | None = None
    max_length: int | None = option(None, at_least=3)
    batch_size: int = option(8, at_least=1)
    benchmark: bool = True
    overwrite: bool = False
    report: str | None = None
    verification_data: VerificationData = "built-in"

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        normalize_options(self)
        check_options(self)
        if not self.is_onnx:
            check_onnx_options(self, self.model)
        elif self.pooling is not None:
            raise UserInputError(
                f"`pooling={self.pooling!r}` applies to checkpoints only. The outputs of "
                f"`model={self.model!r}` are fixed. Leave `pooling` out.",
                argument="pooling",
            )
        if self.max_drop is not None and (self.eval_data, self.calibration_data) == (None, None):
            raise UserInputError(
                f"`max_drop={self.max_drop:g}` compares metrics, which need labels. Pass labeled "
                "examples as `eval_data`.",
                argument="max_drop",
            )
        if self.is_auto:
            self._check_auto()
        if self.ray is False:
            object.__setattr__(self, "ray", None)
        check_percentile(self, self.calibrator_used)
        if self.ranges_from is not None:
            self._check_reuse()

    def _check_reuse(self) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in ("calibrator", "percentile", "calibration_samples", "recalibrate", "ray"):
            if getattr(self, name) != defaults[name]:
                raise UserInputError(
                    f"`{name}` applies to a new calibration, and "
                    f"`ranges_from={self.ranges_from!r}` uses an earlier one. Leave one of the two "
                    "out.",
                    argument=name,
                )

    def _check_auto(self) -> None:
        if len(set(self.targets)) > 1:
            others = ", ".join(repr(name) for name in self.targets if name != "auto")
            raise UserInputError(
                f"`targets` contains 'auto', which chooses one target itself, and {others}. Leave "
                "one of the two out.",
                argument="targets",
            )
        if not self.benchmark:
            raise UserInputError(
                "`benchmark=False` measures no speed, by which `targets=['auto']` chooses. Leave "
                "one of the two out.",
                argument="benchmark",
            )

    @property
    def is_auto(self) -> bool:
        """Whether the call chooses the target itself."""
        return "auto" in self.targets

    @property
    def is_onnx(self) -> bool:
        """Whether the model is an .onnx file rather than a checkpoint."""
        return self.model is not None and is_onnx_file(self.model)

    @property
    def calibrator_used(self) -> CalibratorName:
        """The calibrator, or its default."""
        return self.calibrator or "percentile"

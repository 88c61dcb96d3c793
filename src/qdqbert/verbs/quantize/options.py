"""Options of `quantize`."""

from __future__ import annotations

from pathlib import Path

from qdqbert.common.choices import CalibratorName, ScriptName, TargetChoice, VerificationData
from qdqbert.common.errors import UserInputError
from qdqbert.common.files import name_of
from qdqbert.common.objects import OptionalData, OptionalInput, OptionalModel, OptionalPath, Several
from qdqbert.common.options.calibration import check_percentile
from qdqbert.common.options.columns import check_columns
from qdqbert.common.options.declared import option
from qdqbert.common.options.limits import Limits
from qdqbert.common.options.onnx import check_onnx_options, is_onnx_file
from qdqbert.common.storage import Place, place_of
from qdqbert.encoders.checkpoint.demo import DEMO_NAME
from qdqbert.pipeline.calls import CalibratingCall


class QuantizeOptions(CalibratingCall):
    """Common options.

    Attributes:
        model: Checkpoint: a local folder, a URL or a hub id; or an .onnx file. In Python also
            `(model, tokenizer)` of transformers, a pipeline, a `SentenceTransformer` or a
            `CrossEncoder`. By default the packaged all-MiniLM-L6-v2 (extra `demo`).
        output: Folder or URL to write. By default the name of the model with `-int8` at its end, in
            the current folder.
        targets: Runtimes to write a graph for, all from one calibration. By default the
            engines that are installed here: "native", "onnxruntime" and "openvino". "auto" measures
            all of these engines on the calibration data, and writes the fastest graph that is close
            enough to float.
        eval_data: Labeled examples to compare INT8 with float on, in the form of
            `calibration_data`. If only one of the two is given, it is split: a part calibrates, and
            INT8 is compared with float on the rest, with metrics if there are labels.
        keep_vocabulary: Text file with a text in each line. Tokens that no line needs are removed
            from the tokenizer and the model, which makes multilingual models much smaller. The
            lines keep their tokens. Other words may be split into more tokens.
        keep_scripts: Scripts whose tokens are kept if others are removed, such as "latin" and
            "cyrillic", for texts that you have none of yet. Texts of these scripts keep their
            tokens. With `keep_vocabulary`, what either of them needs is kept.
        benchmark: Measure the latency of INT8 and of float, which takes 10 seconds or more for each
            graph and engine. Measured by default.
        overwrite: Replace an output folder that an earlier call wrote.
        report: File for the report, which is also written if a limit is not met. HTML if its name
            ends in .html, JSON otherwise.
        verification_data: Inputs that are stored with their results in float, for `verify`.
            "built-in" are English sentences of this package. "held-out" are examples of
            `calibration_data` or `eval_data`: their texts can be restored from the stored tokens.
        limits: Limits that are met, if need be, by leaving linear layers in float.
    """

    model: OptionalModel = option(default=None, kw_only=False)
    output: OptionalPath = option(default=None, kw_only=False, short="o", writes="replaced")
    targets: Several[TargetChoice] = option(default=(), flag="target")
    eval_data: OptionalData = option(default=None)
    keep_vocabulary: OptionalInput = option(default=None)
    keep_scripts: Several[ScriptName] = option(default=())
    benchmark: bool = True
    overwrite: bool = False
    report: OptionalPath = option(default=None, writes="replaced")
    verification_data: VerificationData = "built-in"
    limits: Limits = Limits()

    @property
    def output_folder(self) -> Place:
        """The output folder: by default the name of the model, and `-int8`."""
        if self.output is not None:
            return place_of(self.output)
        if self.model is None:
            return Path(f"qdqbert-{DEMO_NAME}")
        name = name_of(self.model)
        return Path(f"{Path(name).stem if self.is_onnx else name}-int8")

    @property
    def overwrites(self) -> bool:
        """Whether an existing output folder is replaced.

        The demo replaces its own folder, but not one that was named without a model.
        """
        return self.overwrite or (self.model is None and self.output is None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_onnx:
            check_onnx_options(self.onnx, self.model)
        for name in ("pooling", "adapter") if self.is_onnx else ():
            value = getattr(self.task_options, name)
            if value is not None:
                raise UserInputError(
                    f"`{name}={value!r}` applies to checkpoints only. The outputs of "
                    f"`model={self.model!r}` are fixed. Leave `{name}` out.",
                    argument=name,
                )
        data = (self.calibration_data, self.eval_data)
        check_columns(self.columns, data, "`calibration_data`")
        if self.keep_vocabulary is not None and not Path(self.keep_vocabulary).is_file():
            raise UserInputError(
                f"`keep_vocabulary={self.keep_vocabulary!r}` is not a file. Name a text file with "
                "a text in each line.",
                argument="keep_vocabulary",
            )
        has_data = (self.eval_data, self.calibration_data) != (None, None)
        if self.limits.max_drop is not None and not has_data:
            raise UserInputError(
                f"`max_drop={self.limits.max_drop:g}` compares metrics, which need labels. Pass "
                "labeled examples as `eval_data`.",
                argument="max_drop",
            )
        if self.is_auto:
            self._check_auto()
        check_percentile(self.calibration, self.calibrator_used)

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
        return self.calibration.calibrator or "percentile"

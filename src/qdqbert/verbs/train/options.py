"""Options of `train`."""

from __future__ import annotations

import math
from typing import Any, Literal

from qdqbert.common.choices import Dropout, QatRanges, RecipeName, SchedulerName
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import (
    Copied,
    DataOption,
    ModelOption,
    OptionalData,
    PathOption,
    Rows,
)
from qdqbert.common.options.calibration import Calibration, check_percentile
from qdqbert.common.options.declared import Options, declared_options, option
from qdqbert.common.options.quantizers import Quantizers
from qdqbert.pipeline.calls import TaskCall
from qdqbert.training.trainer.distillation import Distillation

_FLOAT_SCHEDULE = {"epochs": 3.0, "learning_rate": 3e-5, "lr_scheduler": "linear"}
# A tenth of the float schedule with cosine decay, as in the paper (arXiv:2004.09602) and the
# toolkit's guide. The guide's learning rate is a hundredth of the float one.
_QAT_SCHEDULE = {"epochs": 0.3, "learning_rate": 3e-5, "lr_scheduler": "cosine"}

# Options that may change when a run is resumed.
_CHANGEABLE = ("resume", "overwrite", "keep_checkpoints", "tensorboard")
# Options whose values follow from others. They are compared last, so that the cause is named.
_DERIVED = ("epochs", "learning_rate", "lr_scheduler")
# Fields of groups that only `quantize` takes.
_OF_QUANTIZE = {
    "calibration": ("seed", "ranges_from", "recalibrate", "recalibrate_weights", "ray"),
    "quantizers": ("dedicated_qdq_pairs",),
}


class Optimization(Options):
    """Optimization.

    Attributes:
        epochs: Number of passes over the training data; 3 by default, 0.3 with `qat`.
        learning_rate: Peak learning rate of AdamW; 3e-5 by default.
        lr_scheduler: Name of the schedule in transformers; "linear" by default, "cosine" with
            `qat`.
        warmup: Fraction of the steps in which the learning rate rises.
        weight_decay: Weight decay of AdamW.
        batch_size: Number of model inputs in a batch of each process.
        gradient_accumulation: Number of batches for each update of the weights.
        dropout: Keep the checkpoint's dropout, or turn it off.
        eval_steps: Number of steps after which the model is evaluated and saved. A quarter of the
            run by default.
        keep_best: Write the model that is best on `eval_data` instead of the last one. The model
            before training counts, with `qat` after its calibration.
        seed: Seed of the order of examples, dropout, new heads and masked tokens.
    """

    epochs: float | None = option(default=None, above=0, below=math.inf)
    learning_rate: float | None = option(default=None, above=0, below=math.inf)
    lr_scheduler: SchedulerName | None = None
    warmup: float = option(default=0.1, at_least=0, below=1)
    weight_decay: float = option(default=0.0, at_least=0, below=math.inf)
    batch_size: int = option(default=16, at_least=1)
    gradient_accumulation: int = option(default=1, at_least=1)
    dropout: Dropout = "keep"
    eval_steps: int | None = option(default=None, at_least=1)
    keep_best: bool = False
    # numpy takes seeds of 32 bits.
    seed: int = option(default=0, at_least=0, at_most=2**32 - 1)


class TrainOptions(TaskCall):
    """Common options.

    Attributes:
        model: Checkpoint: a local folder, a URL or a hub id. A missing head is created. In
            Python also a model in memory, as in `quantize`.
        output: Folder or URL to write. Checkpoints of the run are kept in `OUTPUT-checkpoints`
            until it ends, for a URL in `NAME-checkpoints` of the current folder.
        train_data: Labeled examples: a .csv, .jsonl, .json or .parquet file, a folder, CoNLL
            columns, the URL of one, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`.
        eval_data: Labeled examples to evaluate on, in the same formats. No evaluation by default.
        qat: Insert calibrated quantizers and train with them (quantization-aware training).
        recipe: Which tensors to quantize, with `qat`.
        qat_ranges: What training does with calibrated ranges: keep them ("fixed"), learn them by
            gradient ("learned"), or average them with each batch's ("moving").
        max_train_examples: Number of training examples to read at most. All by default.
        max_eval_examples: Number of evaluation examples to read at most. All by default.
        resume: Continue from the last checkpoint of an interrupted run.
        keep_checkpoints: Keep `OUTPUT-checkpoints` after the run.
        tensorboard: Write a TensorBoard log.
        overwrite: Replace an output folder that an earlier call wrote.
        optimization: Length and settings of the training.
        distillation: The teacher, and its weight in the loss.
        calibration: How ranges are found.
        quantizers: Changes to the quantizers of the recipe.
    """

    model: ModelOption = option(kw_only=False)
    output: PathOption = option(kw_only=False, short="o", writes="replaced")
    train_data: DataOption = option()
    eval_data: OptionalData = option(default=None)
    qat: bool = False
    recipe: RecipeName = "full"
    qat_ranges: QatRanges = "fixed"
    max_train_examples: int | None = option(default=None, at_least=1)
    max_eval_examples: int | None = option(default=None, at_least=1)
    resume: bool = False
    keep_checkpoints: bool = False
    tensorboard: bool = False
    overwrite: bool = False
    optimization: Optimization = Optimization()
    distillation: Distillation = Distillation()
    calibration: Calibration = option(default=Calibration(), without=_OF_QUANTIZE["calibration"])
    quantizers: Quantizers = option(default=Quantizers(), without=_OF_QUANTIZE["quantizers"])

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.qat:
            given = self.options_of_new_quantizers()
            if self.qat_ranges != "fixed":
                given.append("qat_ranges")
            for name in given:
                raise UserInputError(
                    f"`{name}` configures quantizers and requires `qat=True`. Add it, or leave "
                    f"`{name}` out.",
                    argument=name,
                )
        check_percentile(self.calibration, self.calibration.calibrator or "mse")
        if self.distillation.teacher is None:
            for each in declared_options(TrainOptions):
                if each.group is Distillation and each.value(self) != each.default:
                    raise UserInputError(
                        f"`{each.name}` configures distillation and requires `distill_from`. Add "
                        f"it, or leave `{each.name}` out.",
                        argument=each.name,
                    )
        if self.max_eval_examples is not None and self.eval_data is None:
            raise UserInputError(
                f"`max_eval_examples={self.max_eval_examples}` requires `eval_data`. Add it, or "
                "leave `max_eval_examples` out.",
                argument="max_eval_examples",
            )
        if self.optimization.keep_best and self.eval_data is None:
            raise UserInputError(
                "`keep_best=True` requires `eval_data`, to compare models on.",
                argument="keep_best",
            )

    def options_of_new_quantizers(self) -> list[str]:
        """Return the names of the given options that determine how quantizers are inserted."""
        names = ("recipe", "calibrator", "percentile")
        return [
            each.name
            for each in declared_options(TrainOptions)
            if (each.name in names or each.parameter == "quantizers")
            and each.value(self) != each.default
        ]

    def schedule(self, name: Literal["epochs", "learning_rate", "lr_scheduler"]) -> Any:
        """Return an option of the schedule, or its default for float training or QAT."""
        value = getattr(self.optimization, name)
        return (_QAT_SCHEDULE if self.qat else _FLOAT_SCHEDULE)[name] if value is None else value

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share, defaults filled in."""
        settings = {
            each.name: _plain(each.value(self)) for each in declared_options(TrainOptions)
        } | {
            "epochs": self.schedule("epochs"),
            "learning_rate": self.schedule("learning_rate"),
            "lr_scheduler": self.schedule("lr_scheduler"),
        }
        ordered = sorted(settings, key=lambda name: name in _DERIVED)
        return {name: settings[name] for name in ordered if name not in _CHANGEABLE}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Rows | Copied) else value
